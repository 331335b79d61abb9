"""One trial: what a setting costs, then what it teaches. Each trainer is the one that `trl sft` makes of the export."""

import functools
import math
import sys
import time
import traceback

from . import device as devices
from . import evaluation, faults, first_adapter, protocol, rival, settings, steady, trainer
from .base_model import BaseModels
from .ranks import Step, of_all
from .trial_files import Invalid, Rows, TrialFiles

#: Nats above the first loss at which a training counts as diverged, as in the native engine.
DIVERGED_NATS = 10.0
#: Steps in a row whose gradients may overflow in fp16 before that counts as divergence, as in the native engine.
MOST_OVERFLOWS = 33
#: Steps of a warm-up that a profile phase within a training has at the least.
LEAST_WARMUP = 2
#: Steps on the longest rows that memory is measured over: optimizers make their state in the first one.
PEAK_STEPS = 2
#: Micro-batches of such a step at the most: from the second one on there are gradients beside its activations.
PEAK_MICRO_BATCHES = 2
#: Measurements that this worker does not make.
NOT_MEASURED = ("accuracy_check", "fp32_training", "score")
#: What errors say that mean that there was no more memory.
OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "cublas_status_alloc_failed",
)


class Ended(Exception):
    """The end of a trial before its time, for the reason that goes with it."""

    def __init__(self, reason):
        super().__init__(reason["kind"])
        self.reason = reason


class Stopped(Exception):
    """The end of a trial that was asked to stop."""

    def __init__(self, at_step):
        super().__init__(at_step)
        self.at_step = at_step


class DeviceLost(Exception):
    """A device that answers nothing more to this process."""


class Runner:
    """What stays between trials, and what runs one of them."""

    def __init__(self, device, program, control, fault, emit, ranks):
        self.device = device
        self.program = program
        self.control = control
        self.fault = fault
        self.emit = emit
        self.ranks = ranks
        self.bases = BaseModels(device)
        self.rows = Rows()
        #: Losses before any training, by what decides them.
        self.losses_before = {}

    def run(self, request):
        """Runs a trial and tells how it ended. Raises `DeviceLost`, and what means that the process cannot go on."""
        run = TrialRun(request, self)
        state = run.outcome()
        run.clear()
        self.emit(protocol.ended(request["number"], state, run.seconds()))


class TrialRun:
    """A trial under way."""

    def __init__(self, request, runner):
        self.request = request
        self.number = request["number"]
        self.runner = runner
        self.device = runner.device
        self.ranks = runner.ranks
        self.phase = "load"
        self.metrics = {}
        self.waited = 0.0
        # What starts ranks is a part of their trial.
        self.started = request.get("began", time.monotonic())
        self.limit_bytes = request.get("memory_limit_bytes")
        self.files = self.settings = self.first_adapter = None
        self.base_bytes = 0

    def seconds(self):
        """Seconds of the trial, waiting for neighbours not counted."""
        return time.monotonic() - self.started - self.waited

    def outcome(self):
        """Runs the trial and returns its state."""
        try:
            self._phases()
            return protocol.complete(self.metrics)
        except Stopped as stopped:
            return protocol.pruned(stopped.at_step, self.metrics)
        except Ended as ended:
            return protocol.failed(ended.reason, self.metrics)
        except (DeviceLost, faults.ProcessOutOfMemory):
            raise
        except (Exception, SystemExit) as error:
            reason = self._reason(error)
            forget_frames(error)
            return protocol.failed(reason, self.metrics)

    def clear(self):
        """Leaves nothing of the trial behind."""
        self.device.set_limit(None)
        self.device.process.forget_trial(None if self.settings is None else self.settings.training)
        self.settings = None
        self.runner.bases.check()
        self.device.empty()

    # The course of a trial.

    def _phases(self):
        plan = self._load()
        measure, train = plan.get("measure"), plan.get("train")
        if measure is not None:
            self._wait(self.runner.control.wait_for_turn(self.number))
            self.ranks.meet()
            self._tell_phase("profile")
            within = self._within(measure, train)
            self._measure_peak()
            if within is not None:
                self._train(train, steady.Profile(within))
                return
            self._measure_alone(measure)
            self._say(protocol.measured(self.number, self.metrics))
        if train is not None:
            self._tell_phase("train")
            self._train(train)

    def _load(self):
        """Reads the files, the rows and the base model, and returns the plan."""
        self._tell_phase("load")
        task = self.request["task"].get("recipe")
        if task is None:
            raise Invalid("this worker trains recipes; params alone need a command backend")
        plan = task["plan"]
        refused = [name for name in NOT_MEASURED if (plan.get("train") or {}).get(name)]
        if refused:
            raise Invalid(f"this backend does not measure {', '.join(refused)}: remove it from the study")
        files = self.request.get("files")
        self.files = TrialFiles(**files) if files else self.runner.program.ask(task["recipe"], plan)
        self.settings = settings.parsed(self.files.config, self.device.is_gpu)
        self.first_adapter = first_adapter.folder_of(self.request)
        if self.first_adapter is not None and not self.settings.model.use_peft:
            raise Invalid("there is no adapter to start from where every weight trains")
        self._rows()
        self.runner.rows.open(self.files.held_out)
        self._load_base()
        self.metrics["load_s"] = self.seconds()
        return plan

    def _load_base(self):
        """Loads the base model, so that its time is none of the first trainer's."""
        bases, files = self.runner.bases, self.files
        is_there = bases.has(self.settings, files.model)
        if not is_there:
            bases.forget()
        if self.limit_bytes is not None:
            # On a processor weights may be mapped while they are read, beside what the trial may take.
            mapped = 0 if is_there or self.device.is_gpu else devices.weight_bytes(files.model)
            self.device.set_limit(self.limit_bytes + mapped, bases.held_bytes)
        if self.settings.keeps_base:
            self.base_bytes = bases.load(self.settings, files.model)
            self._check_memory(self.base_bytes)
            if self.limit_bytes is not None:
                self.device.set_limit(self.limit_bytes, bases.held_bytes)
        self.device.synchronise()

    def _measure_peak(self):
        """Measures memory on the longest rows, by a trainer that is then thrown away: other steps may miss them."""
        training = self.settings.training
        micro_batches = min(training.gradient_accumulation_steps, PEAK_MICRO_BATCHES)
        rows, size = self._rows(), training.per_device_train_batch_size
        if training.packing:
            # TRL packs rows by itself: as many as there are, each as long as the sequence may be.
            chosen = rows
        else:
            longest = self.runner.rows.longest(self.files.train, size)
            of_all_ranks = PEAK_STEPS * micro_batches * self.ranks.count
            chosen, size = rows.select(longest * of_all_ranks), len(longest)
        watch = trainer.StepWatch(self.device, lambda: 0.0, lambda event, rows: None, self._begins)
        self.device.reset_peak()
        made = self._make(
            chosen,
            watch,
            max_steps=PEAK_STEPS,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=micro_batches,
            # As they were chosen: each micro-batch has the longest row.
            train_sampling_strategy="sequential",
        )
        model = made.model
        held = devices.bytes_of([*model.parameters(), *model.buffers()])
        del model
        self.metrics["base_memory_bytes"] = self.base_bytes
        peak = self.device.highest(held, made.train)
        self._keep_peak(peak)
        self._throw_away(made)

    def _keep_peak(self, peak):
        """Keeps the highest memory of all ranks so far; fails where it is above the limit."""
        peak = self.ranks.most(peak)
        self.metrics["peak_memory"] = max(peak or 0, self.metrics.get("peak_memory", 0))
        reserved = self.ranks.most(self.device.peak()[1])
        if reserved is not None:
            self.metrics["reserved_memory_bytes"] = max(reserved, self.metrics.get("reserved_memory_bytes", 0))
        self._check_memory(self.metrics["peak_memory"])

    def _measure_alone(self, measure):
        """Measures steps of a trainer that is then thrown away."""
        profile = steady.Profile(measure)
        steps = measure["max_warmup_steps"] + measure["steps"]
        full = min(self._rows_of_step(), len(self._rows()))

        def took(event, rows):
            event, rows = self._taken(event, rows, losses, "profile")
            # A step that the end of an epoch cuts short says nothing of the others.
            if rows >= full or self.settings.training.packing:
                profile.push(event)
            if profile.is_over:
                raise Measured

        losses = Losses(self.settings.training.fp16)
        watch = trainer.StepWatch(self.device, self._hold, took, self._begins)
        # At most every other step is cut short.
        made = self._make(self._rows(), watch, max_steps=2 * steps + 1)
        self.device.reset_peak()
        try:
            made.train()
        except Measured as measured:
            forget_frames(measured)
        self._keep_peak(self.device.peak()[0])
        self.metrics.update(profile.metrics())
        self._throw_away(made)

    def _train(self, plan, profile=None):
        """Trains and evaluates; the first steps are measured where a profile is given."""
        steps, evaluations = self.files.steps, max(plan["evaluations"], 1)
        held_out = self.runner.rows.first(self.files.held_out, self.files.held_out_windows)
        losses, progress = Losses(self.settings.training.fp16), Progress()
        started, waited = time.monotonic(), self.waited
        self._say(protocol.training(self.number, steps))

        def begins(made):
            self._begins(made)
            self.metrics["loss_before"] = self._loss_before(made, held_out)
            # What an evaluation of the untrained model takes is none of the training's.
            self.device.reset_peak()

        def took(event, rows):
            nonlocal profile
            event, _ = self._taken(event, rows, losses, "train")
            progress.took(event)
            if profile is not None:
                profile.push(event)
                if profile.is_over:
                    self._keep_peak(self.device.peak()[0])
                    self.metrics.update(profile.metrics())
                    profile = None
                    self._say(protocol.measured(self.number, self.metrics))
                    self._tell_phase("train")
            done = progress.steps
            if done * evaluations // steps > (done - 1) * evaluations // steps or done >= steps:
                self._evaluate(watch.trainer, held_out, progress, losses, is_last=done >= steps)

        watch = trainer.StepWatch(self.device, self._hold, took, begins)
        made = self._make(self._rows(), watch, max_steps=steps)
        made.train()
        if progress.steps < steps:
            raise RuntimeError(f"the data ended after {progress.steps} of {steps} steps")
        self.metrics |= {
            "train_steps": steps,
            "train_tokens": progress.tokens,
            "train_epochs": self.files.epochs,
            "train_s": time.monotonic() - started - (self.waited - waited),
        }
        self._throw_away(made)

    def _loss_before(self, made, held_out):
        """The held-out loss of the untrained model: the same for all settings that start and are evaluated alike."""
        training, model = self.settings.training, self.settings.model
        key = (
            settings.key_of(self.settings, self.files.model),
            self.files.held_out,
            len(held_out),
            training.per_device_train_batch_size,
            training.pad_to_multiple_of,
            (training.bf16, training.fp16, model.use_peft, model.use_dora, self.first_adapter),
            (training.torch_compile, training.use_liger_kernel),
        )
        known = self.runner.losses_before
        if key not in known:
            known[key] = evaluation.evaluate(made, held_out, training.per_device_train_batch_size, self.ranks).loss
        return known[key]

    def _evaluate(self, made, held_out, progress, losses, is_last):
        self._tell_phase("evaluate")
        optimizer = made.optimizer
        # Optimizers without a schedule evaluate another mean of the weights than they train.
        switches = hasattr(optimizer, "eval") and hasattr(optimizer, "train")
        if switches:
            optimizer.eval()
        # Ranks would have to end it alike.
        watch = self._beside_rival() if is_last and self.ranks.count == 1 else None
        micro_batch = self.settings.training.per_device_train_batch_size
        found = evaluation.evaluate(made, held_out, micro_batch, self.ranks, watch)
        if switches:
            optimizer.train()
        self.device.synchronise()
        event = found.event(progress.steps, progress.tokens)
        is_part = watch is not None and watch.worse_by is not None
        if is_part:
            event |= {"loss": watch.loss, "standard_error": watch.worse_by.standard_error}
            self.metrics |= {"loss_rows": len(found.losses), "loss_rows_in_all": watch.rows_in_all}
        if not math.isfinite(event["loss"]):
            raise Ended(protocol.diverged(progress.steps, losses.last))
        self.metrics |= {"loss": event["loss"], "token_accuracy": found.accuracy}
        self.metrics["loss_standard_error"] = event.get("standard_error")
        rows = found.rows() if watch is not None and not is_part else None
        self._say(protocol.evaluation(self.number, event, rows))
        self._tell_phase("train")

    def _beside_rival(self):
        """The watch on the last evaluation, where the request compares it."""
        pairing, files = self.request.get("pairing"), self.files
        if pairing is None:
            return None
        targets = functools.partial(self.runner.rows.targets, files.held_out, files.held_out_windows)
        return rival.BesideRival(pairing.get("rival"), targets)

    # Parts of a trial.

    def _make(self, rows, watch, **changes):
        """A trainer on a copy of the base model. What it refuses cannot be trained."""
        phase, self.phase = self.phase, "load"
        # The one before it hangs on itself, and would be a part of this one's memory.
        self.device.empty()
        self.runner.bases.check()
        of_this = self.settings
        if of_this.is_moved_by_engine:
            # The libraries fill in what they need for one training, and keep it.
            of_this = settings.parsed(self.files.config, self.device.is_gpu, changes)
        model, base_bytes = self.runner.bases.take(of_this, self.files.model)
        self.base_bytes = -(-base_bytes // (self.ranks.count if of_this.is_sharded else 1))
        tokenizer = self.runner.bases.tokenizer(of_this, self.files.model)
        self.device.process.begin(of_this.training)
        made = trainer.make(of_this, model, tokenizer, rows, watch, **changes)
        del model
        if self.first_adapter is not None:
            first_adapter.load(made.model, self.first_adapter)
        self.phase = phase
        return made

    def _throw_away(self, made):
        """Ends a trainer. Its memory is free once nobody names it any more."""
        made.accelerator.free_memory()
        made.watch = None

    def _rows(self):
        """The rows to train on. Those that TRL packs are copied, so that it writes no files beside them."""
        return self.runner.rows.open(self.files.train, in_memory=self.settings.training.packing)

    def _rows_of_step(self):
        training = self.settings.training
        return training.per_device_train_batch_size * training.gradient_accumulation_steps * self.ranks.count

    def _begins(self, made):
        """Hears that a trainer is ready for its first step. Among ranks its library has made their models equal."""
        if self.ranks.count > 1:
            self.runner.bases.note_sync()

    def _within(self, measure, train):
        """The plan of a profile phase that is the first steps of the training.

        `None` where these have no room before its first evaluation, or are more than an epoch, whose last may be cut.
        """
        if train is None:
            return None
        room = max(self.files.steps // max(train["evaluations"], 1) - 1, 0) - measure["steps"]
        warmup = min(measure["max_warmup_steps"], room)
        if room < LEAST_WARMUP or warmup + measure["steps"] >= self.files.steps_per_epoch:
            return None
        return {"steps": measure["steps"], "max_warmup_steps": warmup}

    def _taken(self, event, rows, losses, phase):
        """A step and its rows as all ranks took them: checked and told. The trial ends where it is to end."""
        if self.runner.fault.spoils_loss(self.request, phase):
            event["loss"] = math.nan
        peak = self.device.peak()[0] if self.device.is_gpu else None
        own = Step(event, rows, peak, self.runner.control.is_stopped(self.number), self.seconds())
        step = of_all(self.ranks.gathered(own))
        losses.check(step.event)
        if step.peak is not None:
            self._check_memory(step.peak)
        self._say(protocol.step(self.number, phase, step.event))
        if step.is_stopped:
            raise Stopped(step.event["step"])
        limit = self.request.get("time_limit_s")
        if limit is not None and step.after_s > limit:
            raise Ended(protocol.timed_out(phase, step.after_s))
        return step.event, step.rows

    def _check_memory(self, peak):
        if self.limit_bytes is not None and peak > self.limit_bytes:
            raise Ended(protocol.out_of_memory(self.phase, int(peak), self.limit_bytes))

    def _hold(self):
        waited = self.runner.control.wait_while_held(self.number)
        self.ranks.meet()
        self._wait(waited)
        return waited

    def _wait(self, seconds):
        self.waited += seconds

    def _say(self, message):
        self.runner.emit(message)

    def _tell_phase(self, phase):
        self.phase = phase
        self._say(protocol.phase(self.number, phase))
        self.runner.fault.at(self.request, phase)

    def _reason(self, error):
        """The reason that an exception means."""
        if not isinstance(error, Invalid):
            traceback.print_exception(error, file=sys.stderr)
        if is_out_of_memory(error):
            limit = self.limit_bytes if self.limit_bytes is not None else self.device.memory_bytes()
            in_use = self.device.peak()[0]
            return protocol.out_of_memory(self.phase, in_use, limit)
        if self.device.is_gpu and self.device.is_lost():
            raise DeviceLost(protocol.short(error)) from None
        if isinstance(error, Invalid):
            return protocol.invalid(str(error))
        # Whatever it left behind is not to be trusted.
        self.runner.bases.forget()
        return protocol.invalid(error) if self.phase == "load" else protocol.crashed(self.phase, error)


class Measured(Exception):
    """The end of a profile that is no part of a training."""


class Losses:
    """The losses of a training, and whether it has diverged."""

    def __init__(self, is_fp16):
        self._most_overflows = MOST_OVERFLOWS if is_fp16 else 1
        self._overflows = 0
        self._first = None
        #: The last finite loss.
        self.last = None

    def check(self, event):
        """Takes in a step. Raises `Ended` where the training has diverged."""
        loss = event["loss"]
        if self._first is None:
            self._first = loss
        self._overflows = 0 if math.isfinite(event["grad_norm"]) else self._overflows + 1
        is_sound = math.isfinite(loss) and loss < self._first + DIVERGED_NATS
        if not is_sound or self._overflows >= self._most_overflows:
            raise Ended(protocol.diverged(event["step"], self.last))
        self.last = loss


class Progress:
    """How far a training has come."""

    def __init__(self):
        self.steps = self.tokens = 0

    def took(self, event):
        """Counts a step."""
        self.steps += 1
        self.tokens += event["tokens"]


def is_out_of_memory(error):
    """Whether an exception means that there was no more memory, which has many names."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return any(sign in text for sign in OUT_OF_MEMORY_SIGNS)


def forget_frames(error):
    """Lets go of what the frames of an exception hold: tensors of the step that failed, for one."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, error = None, error.__cause__ or error.__context__
