"""One trial: what a setting costs, then what it teaches. Each trainer is the one that `trl sft` makes of the export."""

import math
import sys
import time
import traceback

from . import device as devices
from . import disturbance, faults, first_adapter, preference, protocol, steady, tools, trainer
from .base_model import BaseModels
from .losses import Ended, Losses, Measured, Progress
from .ranks import Step, of_all
from .trial_evaluations import Evaluations, KnownEvaluations
from .trial_files import AnswerRows, Invalid, Rows, TrialFiles

#: Steps of a warm-up that a profile phase within a training has at the least.
LEAST_WARMUP = 2
#: Steps on the longest rows that memory is measured over: optimizers make their state in the first one.
PEAK_STEPS = 2
#: Micro-batches of such a step at the most: from the second one on there are gradients beside its activations.
PEAK_MICRO_BATCHES = 2
#: Measurements that this worker does not make.
NOT_MEASURED = ("accuracy_check", "fp32_training", "retained_loss", "base_kl", "score")


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
        self.answers = AnswerRows()
        self.evaluated = KnownEvaluations()

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
                self._train(train, self._profile(within))
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
        self.settings = tools.parsed(self.runner.program, self.files, self.device.is_gpu)
        self.first_adapter = first_adapter.folder_of(self.request)
        if self.first_adapter is not None and not self.settings.model.use_peft:
            raise Invalid("there is no adapter to start from where every weight trains")
        if not self.settings.kind.compares:
            self._rows()
            self.runner.rows.open(self.files.held_out)
        self._load_base()
        if self.settings.kind.compares:
            self._answers()
            self._held_out_answers()
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
        if self.settings.packs:
            # TRL packs rows by itself: as many as there are, each as long as the sequence may be.
            chosen = rows
        else:
            longest = self._longest(size)
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
        models = [made.model, getattr(made, "ref_model", None)]
        tensors = [tensor for model in models if model for tensor in devices.tensors_of(model)]
        held = devices.bytes_of(tensors)
        del models, tensors
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
        steps = measure["max_warmup_steps"] + measure["steps"]
        full = min(self._rows_of_step(), len(self._rows()))

        def took(event, rows):
            event, rows = self._taken(event, rows, losses, "profile")
            # A step that the end of an epoch cuts short says nothing of the others.
            if rows >= full or self.settings.packs:
                profile.push(event)
            if profile.is_over:
                raise Measured

        losses = Losses(self.settings.training.fp16)
        watch = trainer.StepWatch(self.device, self._hold, took, self._begins)
        # At most every other step is cut short.
        made = self._make(self._rows(), watch, max_steps=2 * steps + 1)
        profile = self._profile(measure)
        self.device.reset_peak()
        try:
            made.train()
        except Measured as measured:
            forget_frames(measured)
        self._keep_measured(profile)
        self._throw_away(made)

    def _train(self, plan, profile=None):
        """Trains and evaluates; the first steps are measured where a profile is given."""
        steps, evaluations = self.files.steps, max(plan["evaluations"], 1)
        held_out = self._evaluations()
        losses, progress = Losses(self.settings.training.fp16), Progress()
        started, waited = time.monotonic(), self.waited
        self._say(protocol.training(self.number, steps))

        def begins(made):
            self._begins(made)
            self.metrics["loss_before"] = held_out.loss_before(made)
            # What an evaluation of the untrained model takes is none of the training's.
            self.device.reset_peak()

        def took(event, rows):
            nonlocal profile
            event, _ = self._taken(event, rows, losses, "train")
            progress.took(event)
            if profile is not None:
                profile.push(event)
                if profile.is_over:
                    self._keep_measured(profile)
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

    def _evaluate(self, made, held_out, progress, losses, is_last):
        self._tell_phase("evaluate")
        optimizer = made.optimizer
        # Optimizers without a schedule evaluate another mean of the weights than they train.
        switches = hasattr(optimizer, "eval") and hasattr(optimizer, "train")
        if switches:
            optimizer.eval()
        watch = held_out.beside(self.request.get("pairing")) if is_last else None
        found = held_out.evaluated(made, watch)
        if switches:
            optimizer.train()
        self.device.synchronise()
        event = found.event(progress.steps, progress.tokens)
        if not math.isfinite(event["loss"]):
            raise Ended(protocol.diverged(progress.steps, losses.last, losses.cause()))
        is_part = watch is not None and watch.worse_by is not None
        if is_part:
            event |= {"loss": watch.loss, "standard_error": watch.worse_by.standard_error}
            self.metrics |= {"loss_rows": len(found.losses), "loss_rows_in_all": watch.rows_in_all}
        self.metrics |= {**found.metrics(), "loss": event["loss"], "loss_standard_error": event.get("standard_error")}
        rows = found.rows() if watch is not None and not is_part else None
        self._say(protocol.evaluation(self.number, event, rows))
        self._tell_phase("train")

    # Parts of a trial.

    def _profile(self, plan):
        """The steps of a profile phase, and a watch beside them."""
        is_busy = self.runner.fault.makes_busy(self.request, "profile")
        return steady.Profile(plan, lambda: self.device.watch_load(self.ranks.count, is_busy))

    def _keep_measured(self, profile):
        """Keeps what a profile phase has measured."""
        found = profile.disturbance()
        self._keep_peak(self.device.peak()[0])
        self.metrics |= {**profile.metrics(), **found.readings}
        # All ranks wait for the one that was disturbed most.
        disturbance.mark(self.metrics, self.ranks.most(found.share()))

    def _make(self, rows, watch, tokenises=False, **changes):
        """A trainer on a copy of the base model. What it refuses cannot be trained."""
        phase, self.phase = self.phase, "load"
        # The one before it hangs on itself, and would be a part of this one's memory.
        self.device.empty()
        self.runner.bases.check()
        of_this = self.settings
        if of_this.is_moved_by_engine:
            # The libraries fill in what they need for one training, and keep it.
            of_this = tools.parsed(self.runner.program, self.files, self.device.is_gpu, changes)
        model, base_bytes = self.runner.bases.take(of_this, self.files.model)
        self.base_bytes = -(-base_bytes // (self.ranks.count if of_this.is_sharded else 1))
        tokenizer = self.runner.bases.tokenizer(of_this, self.files.model)
        if of_this.kind.compares and not tokenises:
            rows = (self._answers().first, rows)
        self.device.process.begin(of_this.training)
        reference = self.runner.bases.reference(of_this, self.files.model)
        made = trainer.make(of_this, model, tokenizer, rows, watch, reference, **changes)
        del model, reference
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
        if self.settings.kind.compares:
            return self._answers().tokens
        return self.runner.rows.open(self.files.train, in_memory=self.settings.packs)

    def _longest(self, count):
        """The numbers of the rows with the most tokens."""
        if self.settings.kind.compares:
            return self._answers().longest(count)
        return self.runner.rows.longest(self.files.train, count)

    def _evaluations(self):
        """Evaluations on the held-out rows."""
        files, rows = self.files, self.runner.rows
        if self.settings.kind.compares:
            tokens = self._held_out_answers().tokens
            held_out = preference.HeldOut(tokens, files.held_out_windows, files.held_out_length)
        else:
            held_out = rows.first(files.held_out, files.held_out_windows)
        return Evaluations(self.settings, files, held_out, self.first_adapter, self.runner)

    def _answers(self):
        """The rows to train on of a trainer that compares answers."""
        kind, training = self.settings.kind, self.settings.training
        batch = training.per_device_train_batch_size if kind.is_batched else None
        return self._tokenised(self.files.train, training.max_length, batch)

    def _held_out_answers(self):
        """The held-out rows of a trainer that compares answers, as long as those of all trials of the study."""
        return self._tokenised(self.files.held_out, self.files.held_out_length)

    def _tokenised(self, path, length, batch=None):
        """Rows of answers, cut to a length, which TRL makes tokens of where they are not there yet.

        Evaluations take the answer beside each held-out one themselves, whatever the micro-batch is.
        """
        kind = self.settings.kind

        def tokenise(texts):
            watch = trainer.StepWatch(self.device, lambda: 0.0, lambda event, rows: None)
            made = self._make(texts, watch, tokenises=True, max_length=length)
            tokens = made.train_dataset.select_columns(list(kind.columns)).flatten_indices()
            self._throw_away(made)
            return tokens

        return self.runner.answers.of(path, (kind.name, self.files.model, length, batch), tokenise)

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
        if devices.is_out_of_memory(error):
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


def forget_frames(error):
    """Lets go of what the frames of an exception hold: tensors of the step that failed, for one."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, error = None, error.__cause__ or error.__context__
