"""A trainer that calls what a real one calls, in its order, and learns one number. Ranks share its micro-batches.

`STAND_IN_STEP_S` makes the update of each step take so many seconds, `STAND_IN_ROW_S` the reading of each row;
`STAND_IN_TOKEN_BYTES` makes each token leave so many bytes.
`STAND_IN_REPLAY` names a file with a training of another engine, as `peft-tune check --json` prints it: its losses, norms
and rates are then what this one has, as if it computed alike. With `STAND_IN_SHUFFLES` it takes rows in another order than
it is told.
`STAND_IN_FAILS=RANK:WORD` makes a rank fail in its third step: by an exception of these words, or, for `killed`, by a
signal.
"""

import contextlib
import json
import math
import os
import random
import signal
import time
from types import SimpleNamespace

from accelerate.state import GradientState
from torch import Tensor, distributed, profiler
from transformers import PrinterCallback, Trainer

#: How far a learning rate goes.
STRIDE = 20.0
#: Bytes that a token leaves for the backward pass.
TOKEN_BYTES = int(os.environ.get("STAND_IN_TOKEN_BYTES", 4096))


def ranks():
    """The number of this rank and that of all."""
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)


def summed(value):
    """The sum over all ranks."""
    values = [value] * ranks()[1]
    if len(values) > 1:
        distributed.all_gather_object(values, value)
    return sum(values)


class Collator:
    """Rows with as many tokens each as the longest has."""

    padding_free = False

    def __call__(self, rows):
        ids, labels = ([row[name] for row in rows] for name in ("input_ids", "labels"))
        mask = [[1] * len(row) for row in ids]
        return {"input_ids": padded(ids, 0), "attention_mask": padded(mask, 0), "labels": padded(labels, -100)}


def padded(rows, filler):
    longest = max(map(len, rows))
    return Tensor([row + [filler] * (longest - len(row)) for row in rows])


def pass_over_scores(rows, length):
    """Makes the scores of attention in an op of their own, as no attention but the eager one does."""
    start = time.perf_counter()
    for place in list(range(length)) * rows:
        sum(math.exp(other - place) for other in range(place + 1))
    profiler.note("aten::_softmax", start, [(rows, length, length)])


def replayed():
    """The training to have, where one is named."""
    path = os.environ.get("STAND_IN_REPLAY")
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class SFTTrainer(Trainer):
    def __init__(self, model, args, train_dataset, processing_class, peft_config=None, callbacks=()):
        if GradientState.shared:
            raise RuntimeError("a training before this one left its state behind")
        GradientState.shared["step"] = 0
        self.args = args
        self.model = self.model_wrapped = model if peft_config is None else model.with_adapter(peft_config, args.seed)
        self.train_dataset, self.processing_class = train_dataset, processing_class
        self.data_collator = Collator()
        self.optimizer = SimpleNamespace(state={})
        self.accelerator = SimpleNamespace(free_memory=lambda: None)
        self.state = SimpleNamespace(global_step=0)
        self._callbacks = [PrinterCallback(), *callbacks]
        self._slope = 0.0
        self._replay = replayed()
        if self._replay is not None:
            self.model.fixed_nats = self._replay["held_out_loss_before"]

    def remove_callback(self, kind):
        self._callbacks = [callback for callback in self._callbacks if type(callback) is not kind]

    def _inner_training_loop(self):
        self.model.train()
        self._call("on_train_begin")
        epoch = 0
        while self.state.global_step < self.args.max_steps:
            batches = self._epoch(epoch)
            while (left := len(batches)) and self.state.global_step < self.args.max_steps:
                self._step(batches, min(self.args.gradient_accumulation_steps, left))
            epoch += 1

    def _epoch(self, epoch):
        """Micro-batches of an epoch, the next one last."""
        numbers = list(range(len(self.train_dataset)))
        if self.args.train_sampling_strategy != "sequential" or os.environ.get("STAND_IN_SHUFFLES"):
            random.Random(self.args.seed + epoch).shuffle(numbers)
        size, (rank, count) = self.args.per_device_train_batch_size, ranks()
        batches = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        # As many for each rank: those of the beginning come again.
        batches += batches[: -len(batches) % count]
        return batches[rank::count][::-1]

    def _step(self, batches, count):
        samples, targets = self.get_batch_samples(iter(lambda: batches.pop(), None), count, "cpu")
        for inputs in samples:
            self.training_step(self.model, inputs, num_items_in_batch=targets)
        self._slope = summed(self._slope)
        self._get_grad_norm(self.model)
        self._fail()
        time.sleep(float(os.environ.get("STAND_IN_STEP_S", 0)))
        if self.model.adapter is not None:
            self.model.adapter.value -= self._get_learning_rate() * STRIDE * self._slope
        self._slope = 0.0
        self._call("on_optimizer_step")
        self.state.global_step += 1
        if self._replay is not None:
            self.model.fixed_nats = self._replay["held_out_loss"]
        self._call("on_step_end")

    def _fail(self):
        rank, _, word = os.environ.get("STAND_IN_FAILS", "").partition(":")
        if rank == str(ranks()[0]) and self.state.global_step == 2:
            if word == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(word)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        chosen = [[self._row(number) for number in next(epoch_iterator)] for _ in range(num_batches)]
        samples = [self.data_collator(rows) for rows in chosen]
        return samples, summed(sum((sample["labels"] != -100).sum() for sample in samples))

    def _row(self, number):
        time.sleep(float(os.environ.get("STAND_IN_ROW_S", 0)))
        return self.train_dataset[number]

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows, length = inputs["input_ids"].shape
        kept = rows * length * TOKEN_BYTES // (4 if self.args.gradient_checkpointing else 1)
        profiler.take(kept)
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        targets = [token for row in inputs["labels"].rows for token in row[1:] if token != -100]
        self._slope += sum(map(model.slope, targets)) / num_items_in_batch
        profiler.take(-kept)
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rows, length = inputs["input_ids"].shape
        if self.model.config._attn_implementation == "eager":
            pass_over_scores(rows, length)
        start = time.perf_counter()
        if self._replay is not None:
            targets = sum(token != -100 for row in inputs["labels"].rows for token in row[1:])
            loss = self._replayed_step()["loss"] * targets / num_items_in_batch
        else:
            loss = sum((-model(**inputs).log_probs).sum(dim=-1)) / num_items_in_batch * ranks()[1]
        profiler.note("aten::mm", start, [(rows * length, 480), (480, 960)], flops=2 * rows * length * 480 * 960)
        return loss

    def compute_loss_context_manager(self):
        return contextlib.nullcontext()

    def _get_grad_norm(self, model):
        return abs(self._slope) if self._replay is None else self._replayed_step()["grad_norm"]

    def _get_learning_rate(self):
        if self._replay is not None:
            return self._replayed_step()["learning_rate"]
        return self.args.learning_rate * (1.0 - self.state.global_step / self.args.max_steps)

    def _replayed_step(self):
        steps = self._replay["steps"]
        return steps[min(self.state.global_step, len(steps) - 1)]

    def _prepare_inputs(self, inputs):
        return inputs

    def _call(self, name):
        for callback in self._callbacks:
            getattr(callback, name)(self.args, self.state, SimpleNamespace())
