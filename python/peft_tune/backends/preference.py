"""Held-out answers that are compared, and what a frozen reference says of them.

The loss is the mean over held-out rows of what TRL's trainer has as the loss of one row, whatever the micro-batch:

dpo    -log sigmoid(d), d the chosen answer's reward above the rejected one's; a reward is beta times the answer's
       log-probability above the reference's
kto    1 - sigmoid(r - k) of a good answer's reward r, 1 - sigmoid(k - r) of a bad one's; k is beta times the mean, over all
       held-out rows, of how much likelier the answer of the row before has become (TRL: over the micro-batches of a moment),
       at least 0
orpo   the chosen row's cross-entropy per token, and -beta log sigmoid of the log odds ratio of the two answers; a reward is
       beta times the answer's mean log-probability of a token

Pairs are those of the rows; of answers without a partner, all pairs of a good one and a bad one.
"""

import copy
import itertools
import math
import time
from typing import NamedTuple

from . import evaluation, rival
from .rewards import Rewards, log_odds_ratio, log_sigmoid, mean, rewards_of_kinds, rewards_of_pairs, sigmoid
from .trial_files import Invalid


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
        return self.rewards.metrics()

    def rows(self):
        """The losses of all rows as they are told; `None` where there are too many."""
        return evaluation.told_rows(self.losses, [1] * len(self.losses))


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


def evaluate_dpo(trainer, rows, micro_batch, ranks, reference, watch=None):
    """Evaluates a model that learnt pairs of answers. `reference` holds what the reference says of the rows, once it did."""
    beta = trainer.beta

    def ask(model, inputs, number):
        found = log_probabilities(model, inputs)
        pairs = len(found) // 2
        of_chosen, of_rejected = said_by(trainer, inputs, number, reference)
        chosen = [beta * (one - other) for one, other in zip(found[:pairs], of_chosen)]
        rejected = [beta * (one - other) for one, other in zip(found[pairs:], of_rejected)]
        losses = [-log_sigmoid(one - other) for one, other in zip(chosen, rejected)]
        return losses, (chosen, rejected, int(counts_of_pairs(inputs)[2]))

    return evaluated_pairs(trainer, rows, micro_batch, ranks, ask, watch)


def evaluate_orpo(trainer, rows, micro_batch, ranks, reference, watch=None):
    """Evaluates a model that learnt pairs of answers without a reference."""
    beta = trainer.beta

    def ask(model, inputs, _):
        of_chosen, of_rejected, logits, *_ = trainer.concatenated_forward(model, inputs)
        found = list(zip(nats_of_chosen(trainer, inputs, logits), of_chosen.tolist(), of_rejected.tolist()))
        losses = [nats - beta * log_sigmoid(log_odds_ratio(one, other)) for nats, one, other in found]
        chosen, rejected = [beta * one for _, one, _ in found], [beta * other for *_, other in found]
        return losses, (chosen, rejected, int(counts_of_halves(inputs)[2]))

    return evaluated_pairs(trainer, rows, micro_batch, ranks, ask, watch)


def evaluated_pairs(trainer, rows, micro_batch, ranks, ask, watch=None):
    """An evaluation of pairs; `ask` gives the losses of a micro-batch, the rewards of its two kinds of answers, and its targets.

    A watch may end it before all pairs are evaluated: its losses and rewards are those of the pairs so far then.
    """
    began = time.perf_counter()

    def asked(model, part, number):
        losses, beside = ask(model, prepared(trainer, rows, part), number)
        return evaluation.OfBatch(losses, [1] * len(losses), beside)

    tally = evaluation.gone_through(trainer, rows, micro_batch, ranks, asked, watch)
    _, losses, _ = tally.so_far()
    chosen, rejected, targets = zip(*tally.beside())
    rewards = rewards_of_pairs(joined(chosen), joined(rejected))
    return Preferred(losses, sum(targets), rewards, time.perf_counter() - began)


def evaluate_kto(trainer, rows, micro_batch, ranks, reference, watch=None):
    """Evaluates a model that learnt answers which are good or bad.

    The drift is a part of each row's loss, so that it comes first, and always over all rows. Then the loss of a row is its
    own, whichever others are gone through, and a watch may end the evaluation as it may one of pairs.
    """
    began = time.perf_counter()
    beta, rows, weigh = trainer.beta, BesideOthers(rows), weights_of(trainer)

    def ask_others(model, part, number):
        inputs = prepared(trainer, rows, part)
        _, of_others = said_by(trainer, inputs, number, reference)
        strays = [one - other for one, other in zip(log_probabilities(model, inputs, "KL_"), of_others)]
        return evaluation.OfBatch([], [], (strays, list(map(bool, inputs["label"].tolist()))))

    def ask(model, part, number):
        inputs = prepared(trainer, rows, part)
        of_answers, _ = said_by(trainer, inputs, number, reference)
        rewards = [beta * (one - other) for one, other in zip(log_probabilities(model, inputs), of_answers)]
        labels = list(map(bool, inputs["label"].tolist()))
        sides = map(weigh, labels)
        losses = [weight * (1.0 - sigmoid(side * (reward - drift))) for reward, (side, weight) in zip(rewards, sides)]
        return evaluation.OfBatch(losses, [1] * len(losses), (rewards, labels, int(counts_of_answers(inputs)[2])))

    strays, labels = map(joined, zip(*evaluation.gone_through(trainer, rows, micro_batch, ranks, ask_others).beside()))
    refuse_one_kind(labels)
    drift = beta * max(mean(strays), 0.0)
    of_both = None if watch is None else rival.OfBothKinds(watch, labels)
    tally = evaluation.gone_through(trainer, rows, micro_batch, ranks, ask, of_both)
    _, losses, _ = tally.so_far()
    rewards, labels, targets = zip(*tally.beside())
    rewards, labels = joined(rewards), joined(labels)
    good = [reward for reward, label in zip(rewards, labels) if label]
    bad = [reward for reward, label in zip(rewards, labels) if not label]
    return Preferred(losses, sum(targets), rewards_of_kinds(good, bad), time.perf_counter() - began)


def refuse_one_kind(labels):
    """Raises `Invalid` where all answers are of one kind."""
    if len(set(labels)) == 1:
        kind = "good" if labels[0] else "bad"
        raise Invalid(
            f"all {len(labels)} held-out answers that are scored are {kind} ones, and there is nothing to compare their rewards with: "
            "hold out rows of both kinds, or raise `trial.evaluation.rows`"
        )


def prepared(trainer, rows, part):
    """A micro-batch of a part of held-out rows."""
    collate = trainer.data_collator
    if hasattr(collate, "max_length"):
        # Held-out rows are cut where they were tokenised for it, whatever length is trained.
        collate = copy.copy(collate)
        collate.max_length = rows.length
    return trainer._prepare_inputs(collate(part))


def joined(parts):
    """The values of all micro-batches, one after the other."""
    return list(itertools.chain.from_iterable(parts))


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


def said_by(trainer, inputs, number, reference):
    """What the frozen reference says of the answers of a micro-batch; `reference` has it once it was asked."""
    if number not in reference:
        found = trainer.compute_ref_log_probs(trainer.ref_model or trainer.model, inputs)
        reference[number] = [one.tolist() for one in found]
    return reference[number]


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
