"""Steady state: when the warm-up is over, and what the steps after it say about throughput.

The numbers are those of the native engine (crates/engine/src/profile/steady.rs): times are compared by token; the
spread is 1.4826 times the median absolute deviation over the median; the interval is half the width of the median's 95%
interval, from order statistics, over the median.
"""

import math
from typing import NamedTuple

#: Two neighbouring steps within this relative distance end the warm-up.
AGREEMENT = 0.1
#: Multiple of the median's time for a token above which a step is slow.
SLOW = 1.5


class WarmupDetector:
    """A decision step by step whether the warm-up is over."""

    def __init__(self, max_steps):
        self._max_steps = max_steps
        self._steps = 0
        self._last = None
        self.is_over = max_steps == 0

    def push(self, seconds, tokens):
        """Takes a finished warm-up step."""
        seconds_per_token = seconds / max(tokens, 1)
        self._steps += 1
        # The first step pays for first allocations and cold caches, so it is never one of the two that must agree.
        if self._steps > 1:
            if self._last is not None and abs(seconds_per_token - self._last) <= AGREEMENT * self._last:
                self.is_over = True
            self._last = seconds_per_token
        if self._steps >= self._max_steps:
            self.is_over = True


class Profile:
    """Steps of a profile phase: those of the warm-up, then the measured ones, beside which the machine is watched."""

    def __init__(self, plan, watch):
        """`watch` begins to watch. The first step begins at once where there is no warm-up."""
        self._count = plan["steps"]
        self._warmup = WarmupDetector(plan["max_warmup_steps"])
        self._warmup_steps = 0
        self._measured = []
        self._watch = watch
        self._watched = watch() if self._warmup.is_over else None

    @property
    def is_over(self):
        """Whether all steps are measured."""
        return self._warmup.is_over and len(self._measured) >= self._count

    def push(self, event):
        """Takes a finished step."""
        if self._warmup.is_over:
            self._measured.append(event)
            self._watched.step_ended()
            return
        self._warmup.push(event["seconds"]["total"], event["tokens"])
        self._warmup_steps += 1
        if self._warmup.is_over:
            self._watched = self._watch()

    def disturbance(self):
        """What the watch found beside the measured steps, which are over."""
        return self._watched.finish()

    def metrics(self):
        """What the measured steps say."""
        steps = [(event["seconds"]["total"], event["tokens"]) for event in self._measured]
        found = {"warmup_steps": self._warmup_steps, "measured_steps": len(steps)}
        measured = throughput(steps)
        if measured is not None:
            found |= {
                "throughput": measured.tokens_per_s,
                "throughput_spread": measured.spread,
                "throughput_interval": measured.interval,
                "slow_steps": measured.slow_steps,
            }
        for part in ("total", "data", "forward", "backward", "optimizer"):
            name = "step_s" if part == "total" else f"{part}_s"
            found[name] = median([event["seconds"][part] for event in self._measured])
        return found


class Throughput(NamedTuple):
    """Throughput over measured steps."""

    #: Median over the steps of tokens a second.
    tokens_per_s: float
    #: Relative spread of single steps.
    spread: float
    #: Relative half width of the median's 95% interval.
    interval: float
    #: Share of the steps that took over `SLOW` times the median's time for a token.
    slow_steps: float


def throughput(steps):
    """The throughput of steps of (seconds, tokens); `None` without one that has tokens."""
    rates = sorted(tokens / max(seconds, 1e-9) for seconds, tokens in steps)
    center = median_of_sorted(rates)
    if not center:
        return None
    deviations = sorted(abs(rate - center) for rate in rates)
    slow = sum(seconds * center > SLOW * tokens for seconds, tokens in steps)
    spread = 1.4826 * median_of_sorted(deviations) / center
    return Throughput(center, spread, median_interval(rates) / center, slow / len(rates))


def median(values):
    """The median of values; `None` without one."""
    return median_of_sorted(sorted(values))


def median_of_sorted(values):
    """The median of sorted values; `None` without one."""
    middle = len(values) // 2
    if not values:
        return None
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def median_interval(values):
    """Half the width of the 95% interval of the median of sorted values; of fewer than six half of their range."""
    count = len(values)
    half = 1.96 * math.sqrt(count) / 2
    low = max(math.floor(count / 2 - half), 0)
    high = min(math.ceil(count / 2 + half), count - 1)
    return (values[high] - values[low]) / 2
