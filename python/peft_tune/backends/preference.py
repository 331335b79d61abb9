"""Held-out answers that are compared, and what a frozen reference says of them.

The loss is the mean over held-out rows of what TRL's trainer has as the loss of one row, whatever the micro-batch:

dpo    -log sigmoid(d), d the chosen answer's reward above the rejected one's; a reward is beta times the answer's
       log-probability above the reference's
kto    1 - sigmoid(r - k) of a good answer's reward r, 1 - sigmoid(k - r) of a bad one's; k is beta times the mean, over all
       held-out rows, of how much likelier the answer of the row before has become (TRL: over the micro-batch), at least 0
orpo   the chosen row's cross-entropy per token, and -beta log sigmoid of the log odds ratio of the two answers; a reward is
       beta times the answer's mean log-probability of a token

Pairs are those of the rows; of answers without a partner, all pairs of a good one and a bad one.
"""

import bisect
import copy
import math
import time
from typing import NamedTuple

from . import evaluation
from .trial_files import Invalid

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


class Preferred(NamedTuple):
    """An evaluation on held-out answers."""

    #: Loss of each row.
    losses: list
    target_tokens: int
    rewards: Rewards
    seconds: float

    @property
    def loss(self):
        """The mean loss of a row; not a number where a reward is none."""
        return mean(self.losses) if math.isfinite(self.rewards.margin) else math.nan

    def event(self, step, tokens):
        """The evaluation as it is told, after so many steps and tokens."""
        rewards = self.rewards
        event = {
            "step": step,
            "tokens": tokens,
            "loss": self.loss,
            "accuracy": rewards.accuracy,
            "target_tokens": self.target_tokens,
            "seconds": self.seconds,
            "reward": {"accuracy": rewards.accuracy, "margin": rewards.margin},
        }
        error = evaluation.standard_error(self.losses, [1] * len(self.losses), 1)
        return event if error is None else {**event, "standard_error": error}

    def metrics(self):
        """Metrics beside the loss of a trial that this is the last evaluation of."""
        rewards = self.rewards
        found = {"reward_accuracy": rewards.accuracy, "reward_margin": rewards.margin}
        if rewards.accuracy:
            farther = max(rewards.accuracy - rewards.low, rewards.high - rewards.accuracy)
            found["reward_accuracy_interval"] = farther / rewards.accuracy
        if rewards.margin and rewards.margin_error is not None:
            found["reward_margin_interval"] = Z * rewards.margin_error / abs(rewards.margin)
        return found


# Micro-batches.


def counts_of_pairs(batch):
    """Pairs, tokens and targets of a micro-batch of chosen answers with the rejected ones below them."""
    rows, tokens, targets = counts_of_answers(batch)
    return rows // 2, tokens, targets


def counts_of_answers(batch):
    """Rows, tokens and targets of a micro-batch of answers."""
    return batch["input_ids"].shape[0], batch["attention_mask"].sum(), batch["completion_mask"][..., 1:].sum()


def counts_of_halves(batch):
    """Pairs, tokens and targets of a micro-batch that holds chosen and rejected answers apart."""
    halves = [[batch[f"{answer}_{part}"] for part in ("attention_mask", "labels")] for answer in ("chosen", "rejected")]
    tokens = sum(mask.sum() for mask, _ in halves)
    targets = sum((labels[..., 1:] != -100).sum() for _, labels in halves)
    return batch["chosen_input_ids"].shape[0], tokens, targets


# The reference.


def add_reference(trainer, batches):
    """Puts what the frozen reference says of their answers into micro-batches, where training steps expect it."""
    model = trainer.model
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            names = ("ref_logps", "ref_KL_logps") if "label" in batch else ("ref_chosen_logps", "ref_rejected_logps")
            batch.update(zip(names, trainer.compute_ref_log_probs(trainer.ref_model or model, batch)))
    finally:
        model.train(was_training)


# Evaluations.


def evaluate_dpo(trainer, rows, micro_batch, reference):
    """Evaluates a model that learnt pairs of answers. `reference` holds what the reference says of the rows, once it did."""
    began = time.perf_counter()
    beta, chosen, rejected, targets = trainer.beta, [], [], 0
    with evaluation.evaluating(trainer) as model:
        for inputs, slot in batches_of(trainer, rows, micro_batch):
            found = log_probabilities(model, inputs)
            pairs = len(found) // 2
            of_chosen, of_rejected = said_by(trainer, inputs, slot, reference)
            chosen += [beta * (one - other) for one, other in zip(found[:pairs], of_chosen)]
            rejected += [beta * (one - other) for one, other in zip(found[pairs:], of_rejected)]
            targets += int(counts_of_pairs(inputs)[2])
    losses = [-log_sigmoid(one - other) for one, other in zip(chosen, rejected)]
    return Preferred(losses, targets, rewards_of_pairs(chosen, rejected), time.perf_counter() - began)


def evaluate_kto(trainer, rows, micro_batch, reference):
    """Evaluates a model that learnt answers which are good or bad."""
    began = time.perf_counter()
    beta, rewards, strays, labels, targets = trainer.beta, [], [], [], 0
    with evaluation.evaluating(trainer) as model:
        for inputs, slot in batches_of(trainer, BesideOthers(rows), micro_batch):
            of_answers, of_others = said_by(trainer, inputs, slot, reference)
            answers, others = log_probabilities(model, inputs), log_probabilities(model, inputs, "KL_")
            rewards += [beta * (one - other) for one, other in zip(answers, of_answers)]
            strays += [one - other for one, other in zip(others, of_others)]
            labels += [bool(label) for label in inputs["label"].tolist()]
            targets += int(counts_of_answers(inputs)[2])
    stray = beta * max(mean(strays), 0.0)
    losses = [
        weight * (1.0 - sigmoid(side * (reward - stray)))
        for reward, (side, weight) in zip(rewards, map(weights_of(trainer), labels))
    ]
    good = [reward for reward, label in zip(rewards, labels) if label]
    bad = [reward for reward, label in zip(rewards, labels) if not label]
    if not good or not bad:
        kind = "bad" if not good else "good"
        raise Invalid(
            f"all {len(labels)} held-out answers that are scored are {kind} ones, and there is nothing to compare their rewards with: "
            "hold out rows of both kinds, or raise `trial.evaluation.rows`"
        )
    return Preferred(losses, targets, rewards_of_kinds(good, bad), time.perf_counter() - began)


def evaluate_orpo(trainer, rows, micro_batch, reference):
    """Evaluates a model that learnt pairs of answers without a reference."""
    began = time.perf_counter()
    beta, chosen, rejected, losses, targets = trainer.beta, [], [], [], 0
    with evaluation.evaluating(trainer) as model:
        for inputs, _ in batches_of(trainer, rows, micro_batch):
            of_chosen, of_rejected, logits, *_ = trainer.concatenated_forward(model, inputs)
            found = list(zip(nats_of_chosen(trainer, inputs, logits), of_chosen.tolist(), of_rejected.tolist()))
            losses += [nats - beta * log_sigmoid(log_odds_ratio(one, other)) for nats, one, other in found]
            chosen += [beta * one for _, one, _ in found]
            rejected += [beta * other for *_, other in found]
            targets += int(counts_of_halves(inputs)[2])
    return Preferred(losses, targets, rewards_of_pairs(chosen, rejected), time.perf_counter() - began)


def batches_of(trainer, rows, micro_batch):
    """Micro-batches of held-out rows in their order, each with its number."""
    collate = trainer.data_collator
    if hasattr(collate, "max_length"):
        # Held-out rows are cut where they were tokenised for it, whatever length is trained.
        collate = copy.copy(collate)
        collate.max_length = rows.length
    for number, start in enumerate(range(0, len(rows), micro_batch)):
        yield trainer._prepare_inputs(collate(rows[start : start + micro_batch])), number


class HeldOut:
    """The first of some held-out rows as tokens, a slice at a time, and the tokens that they are cut to."""

    def __init__(self, rows, count, length):
        self._rows, self._count, self.length = rows, min(count, len(rows)), length

    def __len__(self):
        return self._count

    def __getitem__(self, part):
        start, stop, _ = part.indices(self._count)
        found = self._rows[start:stop]
        return [dict(zip(found, values)) for values in zip(*found.values())]


class BesideOthers:
    """Rows of answers, each beside the answer of the row before it: the last one's for the first."""

    def __init__(self, rows):
        self._rows, self.length = rows, rows.length

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, part):
        start, _, _ = part.indices(len(self._rows))
        before = (start or len(self._rows)) - 1
        found = self._rows[part]
        others = self._rows[before : before + 1] + found[:-1]
        return [{**row, "KL_completion_ids": other["completion_ids"]} for row, other in zip(found, others)]


def log_probabilities(model, inputs, part=""):
    """Log-probability of each sequence's answer, summed as TRL does."""
    ids, mask = inputs[f"{part}input_ids"], inputs[f"{part}attention_mask"]
    labels = ids.masked_fill(inputs[f"{part}completion_mask"] == 0, -100)
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, fused_lm_head=True)
    return outputs.log_probs.sum(dim=-1).tolist()


def said_by(trainer, inputs, slot, reference):
    """What the frozen reference says of a micro-batch's answers; `reference` has it once it was asked."""
    if slot not in reference:
        found = trainer.compute_ref_log_probs(trainer.ref_model or trainer.model, inputs)
        reference[slot] = [one.tolist() for one in found]
    return reference[slot]


def nats_of_chosen(trainer, inputs, logits):
    """Cross-entropy per token of each chosen row, the prompt included."""
    both = trainer.concatenated_inputs(inputs, padding_value=trainer.padding_value, device=trainer.accelerator.device)
    count = len(inputs["chosen_input_ids"])
    ids, mask = (both[f"concatenated_{part}"][:count, 1:] for part in ("input_ids", "attention_mask"))
    # The logits are those before each of these tokens already.
    shifted = {"average_log_prob": True, "is_encoder_decoder": True}
    return (-trainer.get_batch_logps(logits, ids.masked_fill(mask == 0, -100), **shifted)).tolist()


def weights_of(trainer):
    """A function of a label to its side and the weight of its loss."""
    return lambda label: (1.0, trainer.desirable_weight) if label else (-1.0, trainer.undesirable_weight)


# Rewards.


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
