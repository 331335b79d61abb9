"""The loss over held-out rows: the mean of a target token over all of them, whatever the micro-batch.

`Trainer.evaluate` has the mean over micro-batches. The standard error is that of a ratio of sums over micro-batches
(Cochran, Sampling Techniques, 1977, section 6.4), as the native engine has it.
"""

import dataclasses
import math
import time
from typing import NamedTuple

#: Rows whose losses are told at the most: a line of a megabyte.
MOST_ROWS = 1 << 16


class Evaluation(NamedTuple):
    """Sums over held-out rows."""

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

    def rows(self):
        """The losses of all rows as they are told; `None` where there are too many."""
        if len(self.losses) > MOST_ROWS or not math.isfinite(self.loss):
            return None
        return {"target_tokens": self.target_tokens, "losses": self.losses}


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


def evaluate(trainer, rows, micro_batch, ranks):
    """Evaluates the model of a trainer on rows in their order; takes no random number, and leaves the model's mode.

    Ranks take micro-batches in turn, and as many each: where one has none left, it computes the last one again for the
    sums that its model makes with the others'.
    """
    import torch

    began = time.perf_counter()
    collate = trainer.data_collator
    if getattr(collate, "padding_free", False):
        # Losses are told row by row.
        collate = dataclasses.replace(collate, padding_free=False)
    # The wrapped model computes in the training's precision.
    model = trainer.model_wrapped
    was_training = model.training
    starts, found = range(0, len(rows), micro_batch), []
    model.eval()
    try:
        with torch.no_grad(), trainer.compute_loss_context_manager():
            for turn in range(0, len(starts), ranks.count):
                own = turn + ranks.rank
                start = starts[min(own, len(starts) - 1)]
                inputs = trainer._prepare_inputs(collate(rows[start : start + micro_batch]))
                outputs = model(**inputs, use_cache=False, fused_lm_head=True)
                losses = (-outputs.log_probs.double()).sum(dim=-1).tolist()
                targets = outputs.label_mask.sum(dim=-1).tolist()
                if own < len(starts):
                    found.append((start, losses, targets, int(outputs.is_top1.sum())))
    finally:
        model.train(was_training)
    return in_order(ranks.gathered(found), micro_batch, began)


def in_order(found, micro_batch, began):
    """The evaluation of all ranks' micro-batches."""
    all_of = sorted(one for of_rank in found for one in of_rank)
    losses = [loss for _, of_rows, *_ in all_of for loss in of_rows]
    targets = [count for _, _, of_rows, _ in all_of for count in of_rows]
    right = sum(count for *_, count in all_of)
    return Evaluation(losses, targets, micro_batch, right, time.perf_counter() - began)
