"""A trainer that calls what a real one calls, in its order, and learns one number.

`STAND_IN_STEP_S` makes each step take so many seconds, `STAND_IN_TOKEN_BYTES` each token leave so many bytes.
"""

import contextlib
import os
import random
import time
from types import SimpleNamespace

from accelerate.state import GradientState
from torch import Tensor, profiler
from transformers import PrinterCallback

#: How far a learning rate goes.
STRIDE = 20.0
#: Bytes that a token leaves for the backward pass.
TOKEN_BYTES = int(os.environ.get("STAND_IN_TOKEN_BYTES", 4096))


class Collator:
    """Rows with as many tokens each as the longest has."""

    padding_free = False

    def __call__(self, rows):
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(name, filler):
            return Tensor([row[name] + [filler] * (longest - len(row[name])) for row in rows])

        mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
        return {"input_ids": padded("input_ids", 0), "attention_mask": Tensor(mask), "labels": padded("labels", -100)}


class SFTTrainer:
    def __init__(self, model, args, train_dataset, processing_class, peft_config=None, callbacks=()):
        if GradientState.shared:
            raise RuntimeError("a training before this one left its state behind")
        GradientState.shared["step"] = 0
        self.args = args
        self.model = self.model_wrapped = model if peft_config is None else model.with_adapter(peft_config, args.seed)
        self.train_dataset = train_dataset
        self.data_collator = Collator()
        self.optimizer = SimpleNamespace(state={})
        self.accelerator = SimpleNamespace(free_memory=lambda: None)
        self.state = SimpleNamespace(global_step=0)
        self._callbacks = [PrinterCallback(), *callbacks]
        self._slope = 0.0

    def remove_callback(self, kind):
        self._callbacks = [callback for callback in self._callbacks if type(callback) is not kind]

    def train(self):
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
        if self.args.train_sampling_strategy != "sequential":
            random.Random(self.args.seed + epoch).shuffle(numbers)
        size = self.args.per_device_train_batch_size
        return [numbers[at : at + size] for at in range(0, len(numbers), size)][::-1]

    def _step(self, batches, count):
        samples, targets = self.get_batch_samples(iter(lambda: batches.pop(), None), count, "cpu")
        for inputs in samples:
            self.training_step(self.model, inputs, num_items_in_batch=targets)
        self._get_grad_norm(self.model)
        time.sleep(float(os.environ.get("STAND_IN_STEP_S", 0)))
        if self.model.adapter is not None:
            self.model.adapter.value -= self._get_learning_rate() * STRIDE * self._slope
        self._slope = 0.0
        self._call("on_optimizer_step")
        self.state.global_step += 1
        self._call("on_step_end")

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        chosen = [[self.train_dataset[row] for row in next(epoch_iterator)] for _ in range(num_batches)]
        samples = [self.data_collator(rows) for rows in chosen]
        return samples, sum((sample["labels"] != -100).sum() for sample in samples)

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
        start, (rows, length) = time.perf_counter(), inputs["input_ids"].shape
        loss = sum((-model(**inputs).log_probs).sum(dim=-1)) / num_items_in_batch
        profiler.note("aten::mm", start, [(rows * length, 480), (480, 960)], flops=2 * rows * length * 480 * 960)
        return loss

    def compute_loss_context_manager(self):
        return contextlib.nullcontext()

    def _get_grad_norm(self, model):
        return abs(self._slope)

    def _get_learning_rate(self):
        return self.args.learning_rate * (1.0 - self.state.global_step / self.args.max_steps)

    def _prepare_inputs(self, inputs):
        return inputs

    def _call(self, name):
        for callback in self._callbacks:
            getattr(callback, name)(self.args, self.state, SimpleNamespace())
