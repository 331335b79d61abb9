"""What a trainer needs to be tuned by peft-tune: the trial's settings in, JSON lines out, and a callback that reports.

peft-tune starts a program for each trial and writes one JSON object to its standard input:

    {"params": {"rank": 8, ...}, "trial": 3, "seed": 17, "steps": 40}

The program prints JSON lines: {"step": n, "metrics": {...}} while it trains, and as its last one {"metrics": {...}} or
{"outcome": "out_of_memory", "message": "..."}. SIGTERM asks it to stop after the step it is in. Everything else that it
prints is passed over.

This file needs the standard library only; torch and transformers are used where they are there. A training by the Hugging
Face trainer, and all that are built on it (TRL, axolotl, LLaMA-Factory), needs three lines:

    with tuned() as trial:
        trainer = SFTTrainer(..., callbacks=[PeftTuneCallback(trial)])
        trainer.train()
        trial.finish(evaluate(trainer))
"""

import contextlib
import json
import math
import os
import signal
import statistics
import sys
import time

try:
    from transformers import TrainerCallback
except ImportError:  # any object with the same methods will do
    TrainerCallback = object

#: Steps before the measured ones: the first allocate, compile and fill caches.
WARMUP_STEPS = 2
#: The environment variable that holds the trial where standard input cannot reach all processes (see launch/launch.py).
TRIAL_VARIABLE = "PEFT_TUNE_TRIAL"
#: The environment variable with the host memory, in bytes, that a trial may take beside what the program itself holds.
LIMIT_VARIABLE = "PEFT_TUNE_MEMORY_LIMIT"


class Diverged(Exception):
    """The loss is no number any more."""


class Invalid(Exception):
    """Settings that cannot be trained."""


class Trial:
    """One trial: what to train, and where to report."""

    def __init__(self, settings, output=None):
        self.params = settings.get("params", {})
        self.number = settings.get("trial", 0)
        self.seed = settings.get("seed", 0)
        self.steps = settings.get("steps")
        self.output = output
        self.should_stop = False
        self.ended = False
        #: Where several processes share a trial, the first of them reports.
        self.is_main = int(os.environ.get("RANK", "0")) == 0
        self.processes = int(os.environ.get("WORLD_SIZE", "1"))

    @classmethod
    def read(cls, stream=None, output=None):
        """The trial in the environment or, without one, on standard input."""
        text = os.environ.get(TRIAL_VARIABLE) or (stream or sys.stdin).readline()
        try:
            settings = json.loads(text)
        except ValueError as error:
            raise SystemExit(f"expected one JSON object with `params` on standard input: {error}") from error
        return cls(settings, output)

    def param(self, *names, default=None):
        """The value of the first of `names` that was sampled or fixed."""
        return next((self.params[name] for name in names if name in self.params), default)

    def check_processes(self):
        """Refuses a trial on another number of processes than its `devices` say: it would measure something else."""
        devices = self.param("devices", default=1)
        if devices != self.processes:
            raise Invalid(f"`devices` is {devices} and the launcher started {self.processes}; see integrations/launch")

    def report(self, step, metrics):
        """Tells what is known after `step` steps."""
        self._say({"step": step, "metrics": clean(metrics)})

    def finish(self, metrics):
        """Tells the end of a trial that went well."""
        self._end({"metrics": clean(metrics)})

    def fail(self, outcome, message):
        """Tells the end of one that did not."""
        self._end({"outcome": outcome, "message": str(message)[:2000]})

    def stop(self, *_):
        """Asks the training to end after its step."""
        self.should_stop = True

    def _end(self, line):
        if not self.ended:
            self.ended = True
            self._say(line)

    def _say(self, line):
        if self.is_main:
            output = self.output or sys.__stdout__
            output.write(json.dumps(line) + "\n")
            output.flush()


def clean(metrics):
    """Numbers as JSON has them: what is not finite becomes null, which peft-tune takes as not known."""
    def value(number):
        number = float(number)
        return number if math.isfinite(number) else None

    return {name: value(number) for name, number in metrics.items() if number is not None}


def outcome_of(error):
    """The outcome that an exception means, and its message. Running out of memory has many names."""
    text = f"{type(error).__name__}: {error}"
    signs = ("out of memory", "can't allocate memory", "cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out_of_memory", text
    if any(sign.lower() in text.lower() for sign in signs):
        return "out_of_memory", text
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if isinstance(error, Invalid):
        return "invalid", str(error)
    return "crashed", text


@contextlib.contextmanager
def tuned(trial=None):
    """Reads the trial, listens for SIGTERM, and turns whatever the body raises into the trial's outcome.

    What the body prints goes to standard error, so that it cannot garble the reports.
    """
    trial = trial or Trial.read()
    before = signal.signal(signal.SIGTERM, trial.stop)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            limit_memory()
            yield trial
    except Exception as error:
        import traceback

        traceback.print_exc()
        trial.fail(*outcome_of(error))
        if trial.processes > 1:
            # The launcher ends the other processes, which would wait for this one, when this one fails.
            raise
    finally:
        signal.signal(signal.SIGTERM, before)


def limit_memory():
    """Makes allocations beyond PEFT_TUNE_MEMORY_LIMIT fail, where that is set. For trials on the CPU; a GPU has its own end."""
    limit = os.environ.get(LIMIT_VARIABLE)
    if not limit:
        return
    import resource

    held = status_bytes("VmData") or 0
    most = held + int(limit)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def status_bytes(key):
    """A field of this process's status in bytes, on Linux."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


class Memory:
    """Peak memory: of the GPUs' allocator where there are some, else the program's resident set above its start."""

    def __init__(self):
        torch = sys.modules.get("torch")
        self.cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
        self.start = 0
        self.reset()

    def reset(self):
        """Starts a new peak. What is resident now, the loaded libraries, is taken off later readings on the CPU."""
        if self.cuda is not None:
            for device in range(self.cuda.device_count()):
                self.cuda.reset_peak_memory_stats(device)
            return
        self.start = status_bytes("VmRSS") or 0
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
            peak.write("5")

    def peak(self):
        """Bytes, the highest of all devices; None where the system does not tell."""
        if self.cuda is not None:
            devices = range(self.cuda.device_count())
            return max(self.cuda.max_memory_allocated(device) for device in devices)
        highest = status_bytes("VmHWM")
        return None if highest is None else max(highest - self.start, 0)


class Clock:
    """Tokens a second: the median over the steps after the warm-up."""

    def __init__(self, warmup_steps=WARMUP_STEPS):
        self.warmup_steps = warmup_steps
        self.rates = []
        self.seconds = []
        self.seen = 0
        self.began = None

    def begin(self, now=None):
        """A step begins."""
        self.began = time.perf_counter() if now is None else now

    def end(self, tokens, now=None):
        """It has ended and trained on so many tokens."""
        if self.began is None:
            return
        took = (time.perf_counter() if now is None else now) - self.began
        self.seen += 1
        if self.seen > self.warmup_steps and took > 0:
            self.rates.append(tokens / took)
            self.seconds.append(took)

    def throughput(self):
        """Tokens a second; None before the first measured step."""
        return statistics.median(self.rates) if self.rates else None

    def step_s(self):
        """Seconds of a step."""
        return statistics.median(self.seconds) if self.seconds else None


class PeftTuneCallback(TrainerCallback):
    """Reports the steps of a Hugging Face trainer: `throughput`, `peak_memory`, `training_loss`, and `loss` at evaluations.

    Tokens are counted by the trainer itself: set `include_num_input_tokens_seen="non_padding"` in its arguments.
    Give it a `Memory` that was made before the model was loaded, or the model's own bytes are not counted on a CPU.
    """

    def __init__(self, trial, memory=None, report_every=1):
        self.trial = trial
        self.memory = memory or Memory()
        self.clock = Clock()
        self.report_every = max(report_every, 1)
        self.tokens = 0
        self.metrics = {}

    def on_train_begin(self, args, state, control, **_):
        self.tokens = getattr(state, "num_input_tokens_seen", 0)

    def on_step_begin(self, args, state, control, **_):
        self._wait_for_device()
        self.clock.begin()

    def on_step_end(self, args, state, control, **_):
        self._wait_for_device()
        seen = getattr(state, "num_input_tokens_seen", 0)
        self.clock.end(seen - self.tokens)
        self.tokens = seen
        if self.trial.should_stop:
            control.should_training_stop = True
        known = {"throughput": self.clock.throughput(), "peak_memory": self.memory.peak(), "step_s": self.clock.step_s()}
        self.metrics.update({name: value for name, value in known.items() if value is not None})
        if state.global_step % self.report_every == 0 and self.clock.rates:
            self.trial.report(state.global_step, self.metrics)
        return control

    def on_log(self, args, state, control, logs=None, **_):
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        if not math.isfinite(float(loss)):
            raise Diverged(f"the training loss became {loss} at step {state.global_step}")
        self.metrics["training_loss"] = float(loss)

    def on_evaluate(self, args, state, control, metrics=None, **_):
        loss = (metrics or {}).get("eval_loss")
        if loss is None:
            return
        if not math.isfinite(float(loss)):
            raise Diverged(f"the held-out loss became {loss} at step {state.global_step}")
        self.metrics["loss"] = float(loss)
        self.trial.report(state.global_step, self.metrics)

    def result(self):
        """Everything known, for `Trial.finish`."""
        return dict(self.metrics)

    def _wait_for_device(self):
        # A GPU works behind the program's back; without this a step takes no time at all.
        if self.memory.cuda is not None:
            self.memory.cuda.synchronize()
