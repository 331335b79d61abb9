"""Disturbance of a measurement by what else runs on the machine, as the native engine has it.

A disturbance only takes time away, so that it widens the interval of a throughput as far as what may be lost.
"""

from typing import NamedTuple

#: Shortest time between two looks at a machine: the coarsest counter has ticks of 10 ms.
CHUNK_S = 0.1
#: Lost shares from here on are a disturbance: less is what every system does beside.
NOTICED = 0.08
#: Shares of the throughput above this are taken for this.
MOST = 0.9


class Disturbance(NamedTuple):
    """What a watch found beside a measurement."""

    #: Share of the time that was lost to others, in the median over the steps.
    lost: float
    #: Threads that had to wait for each other.
    threads: int
    #: Readings of the machine, as metrics.
    readings: dict

    def share(self):
        """Share of the throughput that may have been lost; 0 for less than can be noticed.

        A loop on several threads ends with its last one: with shares lost at different times, both factors of two count.
        """
        if self.lost < NOTICED:
            return 0.0
        return 1.0 - (1.0 - min(self.lost, 1.0)) ** (2 if self.threads > 1 else 1)


def mark(metrics, share):
    """Marks a measurement as disturbed where a share of its throughput may be lost, with the width that this gives it."""
    share = min(share, MOST)
    if share > 0.0:
        width = max(metrics.get("throughput_interval") or 0.0, share / (1.0 - share))
        metrics |= {"disturbed": share, "throughput_interval": width}


def mean(values):
    """The mean of values; `None` without one."""
    return sum(values) / len(values) if values else None
