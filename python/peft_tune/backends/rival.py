"""The last evaluation of a trial beside that of the best training so far, on the same held-out rows.

Most settings are clearly worse than the best one after a few rows. The evaluation ends there, and the loss is the
rival's over all rows with the difference on these. Looks, rule and order of the rows are the native engine's
(crates/search/src/paired.rs has the formulas, crates/engine/src/training/tally.rs the order), so that both decide alike.
"""

import array
import math
import statistics
import sys
from typing import NamedTuple

#: Chance that an evaluation ends although the true difference is no more than the limit, over all looks.
WRONG_STOP = 0.005
#: Rows after which an evaluation is looked at first.
FIRST_LOOK = 16
#: Rows of one length that a difference is worth at the least where it decides.
LEAST_WORTH = 6.0
#: Share of the rival's loss above which a trial is not near the best any more.
NEAR_BEST_LOSS = 0.01
#: The golden ratio's fraction in units of 2^-64.
GOLDEN = 0x9E3779B97F4A7C15


class PairedDifference(NamedTuple):
    """Difference of two settings' losses for a target token, on the rows that both were evaluated on."""

    #: Loss of the one setting less that of the other, in nats.
    value: float
    #: Standard error over the choice of rows, in nats.
    standard_error: float
    #: Rows of one length that these rows are worth.
    worth: float

    @classmethod
    def of(cls, differences, targets):
        """The difference over rows; `None` where they are too few to tell how sure it is, or a loss is not finite."""
        tokens, squares = sum(targets), sum(target * target for target in targets)
        if not squares or tokens * tokens / squares < LEAST_WORTH:
            return None
        if not all(map(math.isfinite, differences)):
            return None
        value, count = math.fsum(differences) / tokens, len(targets)
        # The jackknife's: a residual without what the row itself takes of it.
        residuals = (
            (difference - value * target) / (1.0 - target / tokens) for difference, target in zip(differences, targets)
        )
        squared = math.fsum(residual * residual for residual in residuals)
        error = math.sqrt((count - 1.0) / count * squared) / tokens
        return cls(value, error, tokens * tokens / squares)

    def is_surely_above(self, limit, looks_in_all):
        """Whether it is above a limit at one of so many looks, but for a chance of `WRONG_STOP` in all of them together."""
        chance = WRONG_STOP / max(looks_in_all, 1)
        return self.value - student(chance, self.worth - 1.0) * self.standard_error > limit


def student(chance, degrees):
    """The value that Student's t is above with a chance: an expansion in inverse powers of the degrees of freedom."""
    z = -statistics.NormalDist().inv_cdf(chance)

    def odd(*factors):
        total = 0.0
        for factor in reversed(factors):
            total = total * z * z + factor
        return total * z

    # Abramowitz and Stegun, 26.7.5.
    terms = (
        odd(1.0, 1.0) / 4.0,
        odd(3.0, 16.0, 5.0) / 96.0,
        odd(-15.0, 17.0, 19.0, 3.0) / 384.0,
        odd(-945.0, -1920.0, 1482.0, 776.0, 79.0) / 92160.0,
    )
    series = 0.0
    for term in reversed(terms):
        series = (series + term) / degrees
    return z + series


def looks(rows):
    """Rows after which an evaluation of so many is looked at: some, and then twice as many as at the last look."""
    found, look = [], FIRST_LOOK
    while look < rows:
        found.append(look)
        look *= 2
    return found


def order(count, is_spread):
    """The order in which micro-batches are gone through: as they come, or spread over all of them."""
    numbers = range(count)
    return sorted(numbers, key=lambda number: number * GOLDEN % 2**64) if is_spread else list(numbers)


class BesideRival:
    """A watch on an evaluation beside its rival."""

    def __init__(self, rival, targets_of_rows):
        """`rival` is that of a request, or `None`; `targets_of_rows` gives the target tokens of all rows."""
        targets = None if rival is None else targets_of_rows()
        if rival is not None and not is_of(rival, targets):
            print("the best trial so far was evaluated on other rows: all rows are evaluated", file=sys.stderr)
            rival = None
        self._loss = None if rival is None else rival["loss"]
        # Messages have a decimal of each f32, and differences are those of the numbers themselves.
        self._losses = array.array("f", [] if rival is None else rival["rows"]["losses"])
        self._looks = [] if rival is None else looks(len(targets))
        self._looked = 0
        #: Rows of the evaluation, where there is a rival.
        self.rows_in_all = len(self._losses)
        #: Difference by which the setting is worse, once that is sure.
        self.worse_by = None

    @property
    def loss(self):
        """The loss that stands for one over all rows; known once `worse_by` is."""
        return self._loss + self.worse_by.value

    def next_look(self):
        """Rows after which it looks next; `None` where it looks at none."""
        return self._looks[self._looked] if self._looked < len(self._looks) else None

    def look(self, rows, losses, targets):
        """Whether the evaluation ends here: numbers of the rows so far, their losses and target tokens."""
        # A large micro-batch passes several.
        self._looked = sum(look <= len(rows) for look in self._looks)
        differences = [loss - self._losses[row] for row, loss in zip(rows, losses)]
        found = PairedDifference.of(differences, targets)
        near = NEAR_BEST_LOSS * abs(self._loss)
        if found is not None and found.is_surely_above(near, len(self._looks)):
            self.worse_by = found
        return self.worse_by is not None


class OfBothKinds:
    """A watch that has another one look once it has seen rows of both kinds, whose rewards can be compared from then on."""

    def __init__(self, watch, kinds):
        """`kinds` are those of all rows."""
        self._watch, self._kinds = watch, kinds

    def next_look(self):
        """Rows after which it looks next; `None` where it looks at none."""
        return self._watch.next_look()

    def look(self, rows, losses, targets):
        """Whether the evaluation ends here, as that of the other one."""
        return len({self._kinds[row] for row in rows}) > 1 and self._watch.look(rows, losses, targets)


def is_of(rival, targets):
    """Whether a rival was evaluated on as many rows of the same lengths, and each has its loss."""
    rows, loss = rival["rows"], rival["loss"]
    is_told = loss is not None and math.isfinite(loss)
    return is_told and len(rows["losses"]) == len(rows["target_tokens"]) and rows["target_tokens"] == targets
