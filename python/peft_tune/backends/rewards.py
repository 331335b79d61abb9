"""Rewards of held-out answers: how often and by how much those of chosen ones are higher, and how sure that is."""

import bisect
import math
from typing import NamedTuple

#: Standard deviations of a normal distribution to either side that hold 95%.
Z = 1.959964


class Rewards(NamedTuple):
    """Rewards of held-out answers."""

    #: Share of the pairs whose chosen answer has the higher reward, and the ends of its 95% interval.
    accuracy: float
    low: float
    high: float
    #: Mean of a chosen answer's above a rejected one's, and its standard error; `None` of too few to tell.
    margin: float
    margin_error: float | None

    def metrics(self):
        """The metrics of a trial."""
        found = {"reward_accuracy": self.accuracy, "reward_margin": self.margin}
        if self.accuracy:
            farther = max(self.accuracy - self.low, self.high - self.accuracy)
            found["reward_accuracy_interval"] = farther / self.accuracy
        if self.margin and self.margin_error is not None:
            found["reward_margin_interval"] = Z * self.margin_error / abs(self.margin)
        return found


def rewards_of_pairs(chosen, rejected):
    """Rewards of answers to the same prompts."""
    margins = [one - other for one, other in zip(chosen, rejected)]
    share = sum(margin > 0 for margin in margins) / len(margins)
    return Rewards(share, *wilson(share, len(margins)), mean(margins), error_of(margins))


def rewards_of_kinds(good, bad):
    """Rewards of answers of two kinds. The share is as sure as that of so many pairs as there are answers of the rarer kind."""
    below = sorted(bad)
    share = sum(bisect.bisect_left(below, reward) for reward in good) / (len(good) * len(bad))
    errors = [error_of(good), error_of(bad)]
    error = None if None in errors else math.hypot(*errors)
    return Rewards(share, *wilson(share, min(len(good), len(bad))), mean(good) - mean(bad), error)


def wilson(share, count):
    """The ends of the 95% interval of a share of so many, by Wilson."""
    middle, spread = share + Z**2 / (2 * count), Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    low, high = ((middle + side * spread) / (1 + Z**2 / count) for side in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


def mean(values):
    """The mean of values; not a number where one of them is none."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


def error_of(values):
    """The standard error of a mean; `None` of one value."""
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(mean([(value - center) ** 2 for value in values]) / (len(values) - 1))


def sigmoid(value):
    """The logistic function."""
    return math.exp(log_sigmoid(value))


def log_sigmoid(value):
    """The logarithm of the logistic function."""
    return min(value, 0.0) - math.log1p(math.exp(-abs(value)))


def log_odds_ratio(one, other):
    """Log odds of one probability over another's, of their logarithms."""
    return (one - other) - (log_of_rest(one) - log_of_rest(other))


def log_of_rest(value):
    """The logarithm of 1 - p, of that of p."""
    rest = -math.expm1(value)
    return math.log(rest) if rest > 0.0 else -math.inf
