"""TRL's trainer with a watch on its steps: their times by part, their tokens, what they learnt."""

import contextlib
import functools
import time

try:
    import resource
except ImportError:  # Not on Windows.
    resource = None

from . import preference

#: Bytes of a block, as the kernel counts reads.
BLOCK = 512


def thread_use():
    """Seconds of processors and bytes from a disk that this thread has used so far; `None` where nobody tells."""
    of_thread = getattr(resource, "RUSAGE_THREAD", None)
    if of_thread is None:
        return None
    # The times of getrusage go on every few milliseconds only.
    return time.thread_time(), BLOCK * resource.getrusage(of_thread).ru_inblock


class StepWatch:
    """The step under way. It tells each finished one to `took`, whose exceptions end the training."""

    def __init__(self, device, waits, took, begins=None):
        """`waits` waits before a step and returns the seconds; `begins` hears of the trainer before its first step."""
        self.device = device
        self.trainer = None
        #: Counts of a micro-batch.
        self.counts = None
        #: Whether the reference says before a step what the export has of it before the training.
        self.asks_before = False
        #: A context that marks a phase for who records; and who hears of a step's micro-batches.
        self.mark = lambda phase: contextlib.nullcontext()
        self.saw = lambda batches: None
        self._waits = waits
        self._took = took
        self._begins = begins
        self._began = None
        self._batches = []
        self._forwards, self._passes, self._losses = [], [], []
        self._optimizer_end = None
        self._learning_rate = self._grad_norm = 0.0
        self._data_s = 0.0
        #: What getting the rows of the step took of this thread, as `thread_use` has it.
        self.data_use = self._used_before = None
        self._is_training = False

    def begin_training(self):
        """Hears that the trainer is ready for its first step."""
        if self._begins is not None:
            self._begins(self.trainer)

    def begin_step(self):
        """Hears that the trainer is about to ask for the rows of a step."""
        waited = self._waits()
        now = time.perf_counter()
        # From the end of one step to the end of the next: what a trainer does between them is part of them.
        self._began = now if self._began is None else self._began + waited
        self._data_began = now
        self._used_before = thread_use()

    def got_rows(self, batches):
        """Hears of the micro-batches of a step."""
        self._data_s = time.perf_counter() - self._data_began
        if self._used_before is not None:
            self.data_use = tuple(now - before for now, before in zip(thread_use(), self._used_before))
        self.saw(batches)
        self._batches = [self.counts(batch) for batch in batches]
        self._forwards, self._passes, self._losses = [], [], []
        if self.asks_before:
            self.device.synchronise()
            began = time.perf_counter()
            preference.add_reference(self.trainer, batches)
            self.device.synchronise()
            # No part of the step.
            self._began += time.perf_counter() - began

    def forward(self, work):
        """Does the forward pass of a micro-batch."""
        start = self.device.mark()
        with self.mark("forward"):
            done = work()
        self._forwards.append((start, self.device.mark()))
        return done

    def micro_batch(self, work):
        """Does both passes of a micro-batch, and keeps its part of the loss."""
        start = self.device.mark()
        with self.mark("passes"):
            loss = work()
        self._passes.append((start, self.device.mark()))
        self._losses.append(loss)
        return loss

    def has_norm(self, norm):
        """Hears of the norm of the gradients before clipping."""
        self._grad_norm = norm

    def end_optimizer(self):
        """Hears that the parameters were updated."""
        self._optimizer_end = self.device.mark()
        self._learning_rate = self.trainer._get_learning_rate()

    def end_step(self, number):
        """Hears that a step is over, and tells it."""
        self.device.synchronise()
        now = time.perf_counter()
        rows, tokens, targets = (sum(int(one) for one in column) for column in zip(*self._batches))
        forward = self._sum(self._forwards)
        event = {
            "step": number,
            "loss": sum(float(loss) for loss in self._losses),
            "learning_rate": float(self._learning_rate),
            "grad_norm": whole(self._grad_norm),
            "tokens": tokens,
            "target_tokens": targets,
            "seconds": {
                "data": self._data_s,
                "forward": forward,
                "backward": max(self._sum(self._passes) - forward, 0.0),
                "optimizer": max(self.device.seconds(self._passes[-1][1], self._optimizer_end), 0.0),
                "total": now - self._began,
            },
        }
        self._batches, self._losses = [], []
        self._took(event, rows)
        # Evaluations and whatever else was done with the step are none of the next one's.
        self._began = time.perf_counter()

    def _sum(self, laps):
        return sum(self.device.seconds(start, end) for start, end in laps)


def whole(norm):
    """A norm as a number. That of weights which are shared out lies in parts on the ranks."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


@functools.lru_cache(maxsize=None)
def classes(kind):
    """A trainer and its callback. Made at the first use: libraries are loaded then."""
    from transformers import TrainerCallback

    class WatchedTrainer(kind.trainer_class()):
        """Trainer whose parts of a step are watched."""

        watch = None

        def get_batch_samples(self, *given, **named):
            self.watch.begin_step()
            with self.watch.mark("data"):
                found = super().get_batch_samples(*given, **named)
            self.watch.got_rows(found[0])
            return found

        def compute_loss(self, *given, **named):
            return self.watch.forward(lambda: super(WatchedTrainer, self).compute_loss(*given, **named))

        def training_step(self, *given, **named):
            return self.watch.micro_batch(lambda: super(WatchedTrainer, self).training_step(*given, **named))

        def _get_grad_norm(self, *given, **named):
            norm = super()._get_grad_norm(*given, **named)
            self.watch.has_norm(norm)
            return norm

    class WatchCallback(TrainerCallback):
        """Callback that tells a watch of the moments that it needs."""

        def __init__(self, watch):
            self.watch = watch

        def on_train_begin(self, args, state, control, **_):
            self.watch.begin_training()

        def on_optimizer_step(self, args, state, control, **_):
            self.watch.end_optimizer()

        def on_step_end(self, args, state, control, **_):
            self.watch.end_step(state.global_step)

    return WatchedTrainer, WatchCallback


def make(settings, model, tokenizer, rows, watch, reference=None, **changes):
    """A trainer of a model over rows, as `trl` makes it, with other values in some fields.

    Rows of answers that are compared come as tokens beside one of their texts, and with the reference that is no part of the model.
    """
    trainer_class, callback_class = classes(settings.kind)
    if settings.asks_before:
        changes["precompute_ref_log_probs"] = False
    texts, tokens = rows if isinstance(rows, tuple) else (rows, None)
    if settings.loader is not None:
        settings.loader.say_cut(texts, settings.training.max_length)
    trainer = trainer_class(
        model=model,
        args=settings.training_with(**changes),
        train_dataset=texts,
        processing_class=tokenizer,
        peft_config=settings.adapter(),
        callbacks=[callback_class(watch)],
        **({} if reference is None else {"ref_model": reference}),
    )
    trainer.watch, watch.trainer, watch.counts = watch, trainer, settings.kind.counts
    if tokens is not None:
        trainer.train_dataset = tokens
    if settings.asks_before:
        # What the reference says comes with the micro-batches of a step, as if it had been asked before.
        trainer.precompute_ref_logps = watch.asks_before = True
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer
