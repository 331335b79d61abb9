"""Trainers that compare answers: they make tokens of texts, ask a reference, and learn the one number by trying both ways. Ranks share
their micro-batches, and average what each has learnt.

A word is a token, its letters are its number. Words of seven letters gain more by a training than words of six.
"""

import contextlib
import math

from torch import Column, Tensor

from .sft_trainer import SFTTrainer, padded, ranks, summed

#: Distance of the two numbers that a slope is measured between.
APART = 1e-4


class PairCollator:
    """Chosen answers, and the rejected ones below them."""

    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, rows):
        halves = [(row["prompt_ids"], row[f"{answer}_ids"]) for answer in ("chosen", "rejected") for row in rows]
        return sequences(halves, self.max_length)


class AnswerCollator:
    """Answers, each with that of another row."""

    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, rows):
        found = {"label": Column(row["label"] for row in rows)}
        for part, name in (("", "completion_ids"), ("KL_", "KL_completion_ids")):
            both = sequences([(row["prompt_ids"], row[name]) for row in rows], self.max_length)
            found |= {part + key: value for key, value in both.items()}
        return found


class HalvesCollator:
    """Chosen and rejected answers apart."""

    def __call__(self, rows):
        fillers = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        return {name: padded([row[name] for row in rows], fillers[name.split("_", 1)[1]]) for name in rows[0]}


def sequences(halves, most):
    ids = [(prompt + answer)[:most] for prompt, answer in halves]
    answers = [([0] * len(prompt) + [1] * len(answer))[:most] for prompt, answer in halves]
    return {
        "input_ids": padded(ids, 0),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "completion_mask": padded(answers, 0),
    }


def words_of(text):
    return [len(word) for word in text.split()]


class PreferenceTrainer(SFTTrainer):
    """What the trainers have in common."""

    def __init__(self, model, args, train_dataset, ref_model=None, **others):
        super().__init__(model, args, train_dataset, **others)
        self.beta = args.beta
        self.precompute_ref_logps = args.precompute_ref_log_probs
        self.ref_model = ref_model
        assert args.disable_dropout in (True, False)
        self.train_dataset = train_dataset.map(self.tokens)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        chosen = [[self.train_dataset[row] for row in next(epoch_iterator)] for _ in range(num_batches)]
        return [self.data_collator(rows) for rows in chosen], None

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, inputs)
        value, parts = model.adapter.value, self.args.gradient_accumulation_steps
        sides = []
        for side in (-1, 1):
            model.adapter.value = value + side * APART
            sides.append(self.compute_loss(model, inputs))
        model.adapter.value = value
        self._slope += (sides[1] - sides[0]) / (2 * APART) / parts / ranks()[1]
        return loss / parts

    def likelihoods(self, model, inputs, part=""):
        labels = inputs[f"{part}input_ids"].masked_fill(inputs[f"{part}completion_mask"] == 0, -100)
        return model(inputs[f"{part}input_ids"], labels).log_probs.sum(dim=-1)

    @contextlib.contextmanager
    def reference(self, model):
        """The model without its adapter."""
        adapter, model.adapter = model.adapter, None
        try:
            yield model
        finally:
            model.adapter = adapter


class DPOTrainer(PreferenceTrainer):
    def __init__(self, model, args, train_dataset, **others):
        super().__init__(model, args, train_dataset, **others)
        self.data_collator = PairCollator(args.max_length)

    @staticmethod
    def tokens(row):
        found = {f"{answer}_ids": words_of(row[answer]) for answer in ("chosen", "rejected")}
        return {**row, "prompt_ids": words_of(row["prompt"]), **found}

    def compute_ref_log_probs(self, model, inputs):
        with self.reference(model):
            found = self.likelihoods(model, inputs)
        half = len(found) // 2
        return Column(found[:half]), Column(found[half:])

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = self.likelihoods(model, inputs)
        half = len(found) // 2
        if self.precompute_ref_logps:
            chosen, rejected = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        else:
            chosen, rejected = self.compute_ref_log_probs(model, inputs)
        rewards = zip(found[:half], chosen, found[half:], rejected)
        losses = [math.log1p(math.exp(-self.beta * ((a - b) - (c - d)))) for a, b, c, d in rewards]
        return sum(losses) / half


class KTOTrainer(PreferenceTrainer):
    desirable_weight = undesirable_weight = 1.0

    def __init__(self, model, args, train_dataset, **others):
        assert args.per_device_train_batch_size > 1 and args.train_sampling_strategy == "sequential"
        super().__init__(model, args, train_dataset, **others)
        rows, size = self.train_dataset.rows, args.per_device_train_batch_size
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            for row, other in zip(batch, batch[-1:] + batch[:-1]):
                row["KL_completion_ids"] = other["completion_ids"]
        self.data_collator = AnswerCollator(args.max_length)

    @staticmethod
    def tokens(row):
        return {**row, "prompt_ids": words_of(row["prompt"]), "completion_ids": words_of(row["completion"])}

    def compute_ref_log_probs(self, model, inputs):
        with self.reference(model):
            return self.likelihoods(model, inputs), self.likelihoods(model, inputs, "KL_")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        answers, others = self.likelihoods(model, inputs), self.likelihoods(model, inputs, "KL_")
        if self.precompute_ref_logps:
            of_answers, of_others = inputs["ref_logps"], inputs["ref_KL_logps"]
        else:
            of_answers, of_others = self.compute_ref_log_probs(model, inputs)
        # That of the micro-batches of all ranks.
        drift = sum(one - other for one, other in zip(others, of_others)) / len(others)
        stray = max(summed(drift) / ranks()[1], 0.0)
        sides = [1 if label else -1 for label in inputs["label"]]
        rewards = [self.beta * (one - other - stray) for one, other in zip(answers, of_answers)]
        return sum(1 - 1 / (1 + math.exp(-side * reward)) for side, reward in zip(sides, rewards)) / len(sides)


class ORPOTrainer(PreferenceTrainer):
    padding_value = 0

    def __init__(self, model, args, train_dataset, processing_class, **others):
        assert processing_class.pad_token is not None
        args.precompute_ref_log_probs = False
        self.max_length = args.max_length
        super().__init__(model, args, train_dataset, processing_class=processing_class, **others)
        self.accelerator.device = "cpu"
        self.data_collator = HalvesCollator()

    def tokens(self, row):
        prompt, found = words_of(row["prompt"]), {}
        for answer in ("chosen", "rejected"):
            ids = (prompt + words_of(row[answer]))[: self.max_length]
            labels = ([-100] * len(prompt) + words_of(row[answer]))[: self.max_length]
            found |= {f"{answer}_input_ids": ids, f"{answer}_attention_mask": [1] * len(ids), f"{answer}_labels": labels}
        return {**row, **found}

    def concatenated_inputs(self, batch, padding_value=0, device=None):
        parts = {"input_ids": padding_value, "attention_mask": 0, "labels": -100}
        both = {part: batch[f"chosen_{part}"].rows + batch[f"rejected_{part}"].rows for part in parts}
        return {f"concatenated_{part}": padded(rows, parts[part]) for part, rows in both.items()}

    def concatenated_forward(self, model, batch):
        both = self.concatenated_inputs(batch)
        found = [self.mean_of(model, labels) for labels in both["concatenated_labels"].rows]
        half = len(batch["chosen_input_ids"])
        # In the place of logits: what finds out how likely a token is.
        return Column(found[:half]), Column(found[half:]), model, None, None

    def get_batch_logps(self, logits, labels, average_log_prob, is_encoder_decoder):
        assert average_log_prob and is_encoder_decoder
        return Column(self.mean_of(logits, [-100, *row]) for row in labels.rows)

    @staticmethod
    def mean_of(model, labels):
        learnt = [token for token in labels[1:] if token != -100]
        return -sum(map(model.nats, learnt)) / len(learnt)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        chosen, rejected, *_ = self.concatenated_forward(model, inputs)

        def log_odds(value):
            return value - math.log(-math.expm1(value))

        odds = [log_odds(one) - log_odds(other) for one, other in zip(chosen, rejected)]
        ids, mask = inputs["chosen_input_ids"].rows, inputs["chosen_attention_mask"].rows
        rows = [[token for token, is_one in zip(*row) if is_one] for row in zip(ids, mask)]
        nats = sum(-self.mean_of(model, row) for row in rows) / len(rows)
        return nats + self.beta * sum(math.log1p(math.exp(-one)) for one in odds) / len(odds)
