"""Load of the processors by others while a trial's steps are measured on them.

The rules are those of the native engine (crates/engine/src/profile/disturbance). Counters are read between steps:

| symbol | meaning |
|---|---|
| w | seconds between two readings, at least `CHUNK_S` |
| t, c | threads that compute; processors that they may use |
| u | own processor time over w min(t, c), that of processes which read rows included |
| p | share of w in which something that could run waited for a processor (Linux' pressure) |
| o | processors that others kept busy, other ranks of the trial not counted |
| s | processor time that the hypervisor gave to another machine, over w min(t, c) |

The lost share is min(1 - u, e + s), where e is p, or (o + t - c) / t where the system counts no pressure, or where processes
read rows: those may wait for one another. A step has the share of its chunk, and the median over the steps counts.
"""

import contextlib
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from .disturbance import CHUNK_S, Disturbance, mean

#: Ticks of `/proc/stat` in a second.
TICKS_PER_S = 100.0
#: Number that, beside a process's own, makes the number of its clock of processor time on Linux.
PROCESS_CLOCK = 2


class Load(NamedTuple):
    """What a measurement puts on the machine: threads of this process, processors that they may use, ranks like this one."""

    threads: int
    cores: int
    ranks: int


class Counters(NamedTuple):
    """Counters of a machine since some moment in the past; what is not counted is `None`."""

    at_s: float = 0.0
    own_s: Any = None
    waiting_s: Any = None
    busy_s: Any = None
    stolen_s: Any = None
    clock_mhz: Any = None


class Window(NamedTuple):
    """Differences between two readings."""

    own_share: Any = None
    waiting_share: Any = None
    other_cores: Any = None
    lost: float = 0.0

    @classmethod
    def between(cls, first, last, load):
        """The differences, for what the measurement puts on the machine."""
        seconds = last.at_s - first.at_s
        if seconds <= 0:
            return cls()

        def passed(before, after):
            return None if before is None or after is None else max((after - before) / seconds, 0.0)

        usable = min(load.threads, load.cores)
        own, waiting = passed(first.own_s, last.own_s), passed(first.waiting_s, last.waiting_s)
        busy, stolen = passed(first.busy_s, last.busy_s), passed(first.stolen_s, last.stolen_s)
        others = None if busy is None else max(busy - (own or 0.0) * load.ranks, 0.0)
        taken = 0.0 if others is None else max(others + load.threads - load.cores, 0.0) / load.threads
        waiting = None if waiting is None else min(waiting, 1.0)
        missing = 1.0 if own is None else max(1.0 - own / usable, 0.0)
        by_others = (taken if waiting is None else waiting) + (stolen or 0.0) / usable
        return cls(None if own is None else own / usable, waiting, others, min(missing, by_others, 1.0))


def usable_cpus():
    """Numbers of the processors that this process may use: all of the machine's on systems that pin none."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0))


class HostCounters:
    """Counters of Linux, below a root; another system counts the worker's own time alone."""

    def __init__(self, root="/"):
        self._root = Path(root)
        self.cpus = usable_cpus()
        self._of_readers = {}

    def read(self):
        """The counters now."""
        own_s, (busy_s, stolen_s) = self._own_s(), self._busy_and_stolen_s()
        waiting_s = None if self._of_readers else self._waiting_s()
        return Counters(time.monotonic(), own_s, waiting_s, busy_s, stolen_s, self._clock_mhz())

    def _own_s(self):
        """Processor time of this process, and of those that read rows for it: what ended counts as far as it came."""
        for reader in multiprocessing.active_children():
            with contextlib.suppress(OSError):
                self._of_readers[reader.pid] = time.clock_gettime(~reader.pid << 3 | PROCESS_CLOCK)
        return time.process_time() + sum(self._of_readers.values())

    def _waiting_s(self):
        for line in self._lines("proc/pressure/cpu"):
            if line.startswith("some"):
                return int(line.rpartition("total=")[2]) / 1e6
        return None

    def _busy_and_stolen_s(self):
        """Seconds of work and of what the hypervisor took, on the processors that may be used."""
        names = {f"cpu{cpu}" for cpu in self.cpus}
        rows = [line.split() for line in self._lines("proc/stat")]
        rows = [[int(ticks) for ticks in row[1:]] for row in rows if row and row[0] in names]
        if not rows:
            return None, None
        # user, nice, system, (idle, waiting for devices,) interrupts, soft interrupts, steal
        rows = [row + [0] * 8 for row in rows]
        busy = sum(row[column] for row in rows for column in (0, 1, 2, 5, 6))
        return busy / TICKS_PER_S, sum(row[7] for row in rows) / TICKS_PER_S

    def _clock_mhz(self):
        files = [f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in self.cpus]
        clocks = [int(line) / 1e3 for file in files for line in self._lines(file) if line.isdigit()]
        return mean(clocks)

    def _lines(self, file):
        try:
            return (self._root / file).read_text(encoding="ascii").splitlines()
        except OSError:
            return []


class Busy:
    """Counters of a made-up machine with two processors, on which another program takes half of each. For tests."""

    def __init__(self):
        self._read = 0.0

    def read(self):
        """The counters a second later."""
        self._read += 1.0
        return Counters(self._read, own_s=self._read, waiting_s=self._read)


class HostWatch:
    """The processors, while steps are measured on them."""

    def __init__(self, counters, load):
        self._counters, self._load = counters, load
        self._first = self._last = counters.read()
        self._lost, self._clocks = [], []
        self._waiting = 0

    def step_ended(self):
        """Takes note that a measured step is over."""
        self._waiting += 1
        now = self._counters.read()
        if now.at_s - self._last.at_s >= CHUNK_S:
            self._end_chunk(now)

    def finish(self):
        """Ends the watch and returns what it found; without steps, over the whole time."""
        now = self._counters.read()
        # Too few seconds to tell are told with the chunk before, where there is one.
        if not self._lost or now.at_s - self._last.at_s >= CHUNK_S:
            self._waiting = max(self._waiting, int(not self._lost))
            self._end_chunk(now)
        whole = Window.between(self._first, now, self._load)
        readings = {
            "own_cpu_share": whole.own_share,
            "cpu_pressure": whole.waiting_share,
            "other_cores": whole.other_cores,
            "clock_mhz": mean(self._clocks),
        }
        return Disturbance(sorted(self._lost)[len(self._lost) // 2], self._load.threads, readings)

    def _end_chunk(self, now):
        self._lost += [Window.between(self._last, now, self._load).lost] * self._waiting
        if now.clock_mhz is not None:
            self._clocks.append(now.clock_mhz)
        self._last, self._waiting = now, 0
