"""The loss over held-out rows: the mean of a target token over all of them, whatever the micro-batch.

An evaluation beside a rival (rival.py) may end after a part of the rows. `Trainer.evaluate` has the mean over
micro-batches. The standard error is that of a ratio of sums over micro-batches
(Cochran, Sampling Techniques, 1977, section 6.4), as the native engine has it.
"""

import contextlib
import dataclasses
import math
import sys
import time
from typing import Any, NamedTuple

from . import rival

#: Rows whose losses are told at the most: a line of a megabyte.
MOST_ROWS = 1 << 16


class Evaluation(NamedTuple):
    """Sums over the held-out rows that were gone through, in the order of the rows."""

    #: Cross-entropy of each row, in nats, and its target tokens.
    losses: list
    target_tokens: list
    #: Rows of a micro-batch.
    micro_batch: int
    #: Target tokens that the model finds the most likely ones.
    right: int
    seconds: float

    @property
    def loss(self):
        """The mean cross-entropy of a target token; not a number where there is none."""
        targets = sum(self.target_tokens)
        return math.fsum(self.losses) / targets if targets else math.nan

    @property
    def accuracy(self):
        """The share of target tokens that the model finds the most likely ones."""
        return self.right / max(sum(self.target_tokens), 1)

    def event(self, step, tokens):
        """The evaluation as it is told, after so many steps and tokens."""
        event = {
            "step": step,
            "tokens": tokens,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "target_tokens": sum(self.target_tokens),
            "seconds": self.seconds,
        }
        error = standard_error(self.losses, self.target_tokens, self.micro_batch)
        return event if error is None else {**event, "standard_error": error}

    def metrics(self):
        """Metrics beside the loss of a trial that this is the last evaluation of."""
        return {"token_accuracy": self.accuracy}

    def rows(self):
        """The losses of all rows as they are told; `None` where there are too many."""
        return told_rows(self.losses, self.target_tokens)


def told_rows(losses, weights):
    """Losses of rows as they are told, with what each counts for in their mean; `None` where there are too many."""
    if len(losses) > MOST_ROWS:
        print("too many held-out rows to compare trials row by row", file=sys.stderr)
        return None
    return {"target_tokens": weights, "losses": losses}


def standard_error(losses, targets, micro_batch):
    """How far the mean would move with other rows, in nats; `None` for fewer than two micro-batches."""
    starts = range(0, len(losses), micro_batch)
    sums = [(math.fsum(losses[at : at + micro_batch]), sum(targets[at : at + micro_batch])) for at in starts]
    count, all_targets = len(sums), sum(targets)
    if count < 2 or not all_targets:
        return None
    mean = math.fsum(losses) / all_targets
    residual = math.fsum((loss - mean * target) ** 2 for loss, target in sums)
    error = math.sqrt(count / (count - 1) * residual) / all_targets
    return error if math.isfinite(error) else None


def evaluate(trainer, rows, micro_batch, ranks, watch=None):
    """Evaluates the model of a trainer on rows; takes no random number, and leaves the model's mode."""
    began = time.perf_counter()
    collate = trainer.data_collator
    if getattr(collate, "padding_free", False):
        # Losses are told row by row.
        collate = dataclasses.replace(collate, padding_free=False)

    def ask(model, part, _):
        outputs = model(**trainer._prepare_inputs(collate(part)), use_cache=False, fused_lm_head=True)
        losses = (-outputs.log_probs.double()).sum(dim=-1).tolist()
        return OfBatch(losses, outputs.label_mask.sum(dim=-1).tolist(), int(outputs.is_top1.sum()))

    tally = gone_through(trainer, rows, micro_batch, ranks, ask, watch)
    _, losses, targets = tally.so_far()
    return Evaluation(losses, targets, micro_batch, sum(tally.beside()), time.perf_counter() - began)


def gone_through(trainer, rows, micro_batch, ranks, ask, watch=None):
    """Goes through rows with the model of a trainer; `ask` asks it of a micro-batch and its number, and returns `OfBatch`.

    Ranks take the micro-batches of a group, one each. Where one has none left, it computes the last one again for the sums
    that its model makes with the others'. A watch may end it before all rows are evaluated: then groups come in an order
    that is spread over all of them. All ranks know when it looks next, tell one another their rows there, and find the same.
    """
    tally = Tally(len(rows), micro_batch)
    groups = math.ceil(tally.batches / ranks.count)
    with evaluating(trainer) as model:
        for group in rival.order(groups, watch is not None and watch.next_look() is not None):
            first = group * ranks.count
            own = first + ranks.rank
            number = min(own, tally.batches - 1)
            found = ask(model, rows[tally.rows_of(number)], number)
            if number == own:
                tally.take(number, found)
            tally.pass_group(first, ranks.count)
            if watch is not None and tally.is_looked_at(watch):
                tally.join(ranks)
                if watch.look(*tally.so_far()):
                    break
    tally.join(ranks)
    return tally


@contextlib.contextmanager
def evaluating(trainer):
    """The model of a trainer as it is evaluated, for a block: no gradients, no dropout, the training's precision."""
    import torch

    # The wrapped model computes in the training's precision.
    model = trainer.model_wrapped
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), trainer.compute_loss_context_manager():
            yield model
    finally:
        model.train(was_training)


class OfBatch(NamedTuple):
    """What is found of a micro-batch."""

    #: Losses of its rows, and what each counts for in their mean. Empty where something else is asked for.
    losses: list
    weights: list
    #: What is found beside them.
    beside: Any


class Tally:
    """An evaluation under way."""

    def __init__(self, rows, micro_batch):
        self._rows, self._micro_batch = rows, micro_batch
        #: Micro-batches in all.
        self.batches = math.ceil(rows / micro_batch)
        #: What is found of each micro-batch so far, by number.
        self.found = {}
        #: What this rank has found that the others do not know yet.
        self._untold = {}
        #: Rows that all ranks together have gone through.
        self._passed = 0

    def rows_of(self, number):
        """The rows of a micro-batch."""
        return slice(number * self._micro_batch, min((number + 1) * self._micro_batch, self._rows))

    def take(self, number, found):
        """Takes in what is found of a micro-batch."""
        self.found[number] = self._untold[number] = found

    def pass_group(self, first, count):
        """Counts the rows of so many micro-batches from this one on, which all ranks have gone through."""
        start, stop = (min(number * self._micro_batch, self._rows) for number in (first, first + count))
        self._passed += stop - start

    def join(self, ranks):
        """Takes in what the other ranks have found since the last time."""
        for of_rank in ranks.gathered(self._untold):
            self.found.update(of_rank)
        self._untold = {}

    def beside(self):
        """What is found beside losses so far, in the order of the rows."""
        return [self.found[number].beside for number in sorted(self.found)]

    def is_looked_at(self, watch):
        """Whether a watch looks now: none does at the end."""
        look = watch.next_look()
        return look is not None and look <= self._passed < self._rows

    def so_far(self):
        """Numbers, losses and weights of the rows that were gone through, in the order of the rows."""
        numbers, losses, weights = [], [], []
        for number in sorted(self.found):
            found = self.found[number]
            start = self.rows_of(number).start
            numbers += range(start, start + len(found.losses))
            losses += found.losses
            weights += found.weights
        return numbers, losses, weights
