"""One setting in depth: where a step of TRL's trainer spends its time and memory. Nothing is kept of the training.

Steps that nobody records give throughput, phases and waits. A few more run under torch.profiler, and give ops, the
memory at the peak in its parts, and a GPU's timeline. What is told are the fields of the program's own profile.
"""

import json
import os
import sys
import time
import traceback

from . import device as devices
from . import profile_events, steady, tools, trainer
from .base_model import BaseModels
from .losses import Measured
from .protocol import short
from .trial_files import Invalid, Program, Rows, lengths_of

#: Steps that are measured at the least, and steps under the profiler.
LEAST_STEPS, RECORDED_STEPS = 6, 3
#: Steps of a training that is ended long before.
MOST_STEPS = 1_000_000
#: Part of the time that free steps may take; what the profiler writes down takes the rest.
OF_FREE_STEPS = 0.7


def answer(line, device, tool="trl"):
    """The profile that a line of JSON asks for, or why there is none."""
    try:
        request = json.loads(line)
        return {"profiled": Profiling(request, device, Program(tool=tool)).run()}
    except Invalid as error:
        return {"failed": {"is_invalid": True, "message": str(error)}}
    except (Exception, SystemExit) as error:
        if devices.is_out_of_memory(error):
            told = "out of memory: lower `micro_batch` or `sequence_length`, or recompute more (`gradient_checkpointing`)"
            return {"failed": {"is_invalid": False, "message": told}}
        traceback.print_exception(error, file=sys.stderr)
        return {"failed": {"is_invalid": False, "message": short(error)}}


class Profiling:
    """Steps of one recipe under way."""

    def __init__(self, request, device, program):
        self.request, self.device = request, device
        self.recipe, plan = request["recipe"], request["plan"]
        self.files = program.ask(self.recipe, plan)
        self.settings = tools.parsed(program, self.files, device.is_gpu)
        self.bases, self.rows = BaseModels(device), Rows()
        self.warmup = steady.WarmupDetector(plan["measure"]["max_warmup_steps"])
        self.warmup_steps = 0
        self.free, self.recorded, self.shapes = [], [], []
        #: What getting the rows of each free step used, as far as it is told.
        self.data_uses = []
        self.made = self.watch = self.recorder = self.held_bytes = None
        #: The end of the warm-up.
        self.began = time.perf_counter()
        training = self.settings.training
        self.full_rows = training.per_device_train_batch_size * training.gradient_accumulation_steps

    def run(self):
        """Trains until enough is known, and returns the fields of a profile."""
        made = self.made = self._trainer()
        # The last steps of an epoch may be short; a data set that has no full step is measured as it is.
        self.full_rows = min(self.full_rows, len(made.train_dataset))
        self.device.reset_peak()
        try:
            made.train()
        except Measured:
            pass
        else:
            raise RuntimeError("the training ended before its steps were measured")
        events = self.recorder.events()
        return {"profile": self._profile(made, events), "trace_error": self._write_trace()}

    def _trainer(self):
        """A trainer as a trial's."""
        model, _ = self.bases.take(self.settings, self.files.model)
        tokenizer = self.bases.tokenizer(self.settings, self.files.model)
        self.device.process.begin(self.settings.training)
        rows = self.rows.open(self.files.train, in_memory=self.settings.packs)
        watch = self.watch = trainer.StepWatch(self.device, lambda: 0.0, self._took)
        watch.mark, watch.saw = self.device.mark_phase, self._saw
        return trainer.make(self.settings, model, tokenizer, rows, watch, max_steps=MOST_STEPS)

    def _saw(self, batches):
        """Hears of the micro-batches of a step."""
        if self.recorder is not None:
            self.shapes += [tuple(batch["input_ids"].shape) for batch in batches]

    def _took(self, event, rows):
        """Hears of a finished step, and goes on from the warm-up to free steps to recorded ones."""
        if self.recorder is not None:
            self.recorded.append(event)
            if len(self.recorded) == RECORDED_STEPS:
                self.device.synchronise()
                self.recorder.stop()
                raise Measured
            return
        if not self.warmup.is_over:
            self.warmup.push(event["seconds"]["total"], event["tokens"])
            self.warmup_steps += 1
            self.began = time.perf_counter()
            return
        if rows >= self.full_rows or self.settings.packs:
            self.free.append(event)
            self.data_uses += [] if self.watch.data_use is None else [self.watch.data_use]
        is_over = time.perf_counter() - self.began >= OF_FREE_STEPS * self.request["budget_s"]
        if len(self.free) >= LEAST_STEPS and (is_over or self._is_settled()):
            self._record()

    def _is_settled(self):
        """Whether the throughput is known as closely as was asked for."""
        found = steady.throughput([(one["seconds"]["total"], one["tokens"]) for one in self.free])
        return found is not None and found.interval <= self.request["interval"]

    def _record(self):
        """Starts the profiler. The state of the optimizer is there by now, and no gradients are."""
        self.held_bytes = devices.bytes_of(self._tensors())
        self.recorder = self.device.recorder()
        self.recorder.start()

    def _tensors(self):
        """Tensors that live from step to step."""
        made = self.made
        states = made.optimizer.state.values() if made.optimizer is not None else []
        of_states = [value for state in states for value in state.values() if hasattr(value, "untyped_storage")]
        return [*devices.tensors_of(made.model), *of_states]

    # What is told.

    def _profile(self, made, events):
        free = [(one["seconds"]["total"], one["tokens"]) for one in self.free]
        recorded_s = steady.median([one["seconds"]["total"] for one in self.recorded])
        found, parameters = steady.throughput(free), list(made.model.parameters())
        dimensions = profile_events.names_of_dimensions(self.shapes, parameters)
        all_s = sum(one["seconds"]["total"] for one in self.recorded) / len(self.recorded)
        ops = profile_events.ops_of(events, len(self.recorded), all_s, dimensions, self.device.is_gpu)
        step_s = steady.median([seconds for seconds, _ in free])
        slowdown = self._slowdown()
        return {
            "setting": self._setting(made, parameters),
            "data": self._data(made),
            "steps": {
                "warmup_steps": self.warmup_steps,
                "measured_steps": len(free),
                "tokens_per_s": found.tokens_per_s,
                "interval": found.interval,
                "spread": found.spread,
                "step_s": step_s,
                "tokens_per_step": sum(tokens for _, tokens in free) / len(free),
                "settled": found.interval <= self.request["interval"],
                "each": [list(one) for one in free],
                "spanned": {
                    "steps": len(self.recorded),
                    "step_s": recorded_s,
                    "slowdown": slowdown,
                    "timed_by": "profiler",
                },
            },
            "phases": self._phases(ops, step_s, slowdown),
            "modules": [],
            "ops": ops,
            "memory": self._memory(made),
            "adapter": None,
            "arithmetic": self._arithmetic(ops),
            "evaluation": None,
            "samples": [],
            "energy": None,
            "gpu": profile_events.timeline_of(events, len(self.recorded)) if self.device.is_gpu else None,
        }

    def _slowdown(self):
        """Time of a token under the profiler over that in free steps."""
        times = [[one["seconds"]["total"] / max(one["tokens"], 1) for one in steps] for steps in (self.recorded, self.free)]
        recorded, free = map(steady.median, times)
        return recorded / free

    def _phases(self, ops, step_s, slowdown):
        """Medians of the free steps' phases; the time in ops is that of the recorded ones, had they run freely."""
        phases, left = [], 1.0
        for name in ("data", "forward", "backward", "optimizer"):
            times = sorted(one["seconds"][name] for one in self.free)
            share = steady.median(one["seconds"][name] / one["seconds"]["total"] for one in self.free)
            center = steady.median_of_sorted(times)
            in_ops = min(sum(one["seconds"] for one in ops if one["phase"] == name) / slowdown, center)
            phases.append(phase(name, center, steady.median_interval(times) / center if center else 0.0, share, in_ops))
            left -= share
        left = max(left, 0.0)
        return [*phases, phase("idle", left * step_s, 0.0, left, 0.0)]

    def _setting(self, made, parameters):
        training, batch, adapter = self.settings.training, self.recipe["batch"], self.recipe.get("adapter")
        trained, all_parameters = counts_of(made.model, parameters)
        compute = "bf16" if training.bf16 else "f16" if training.fp16 else "f32"
        config = getattr(made.model, "config", None)
        return {
            "model": self.recipe["model"],
            "base_parameters": all_parameters - trained if adapter else all_parameters,
            "trained_parameters": trained,
            "device": self.device.title(),
            "threads": self.device.threads(),
            "cores": os.cpu_count() or 1,
            "precision": self.recipe["precision"],
            "compute_dtype": compute,
            "rank": adapter["rank"] if adapter else None,
            "dropout": adapter["dropout"] if adapter else 0.0,
            "optimizer": self.recipe["optimizer"]["kind"],
            "checkpointing": self.recipe["gradient_checkpointing"],
            "micro_batch": batch["micro_batch"],
            "gradient_accumulation": batch["gradient_accumulation"],
            "sequence_length": batch["sequence_length"],
            "packing": batch["packing"],
            "attention": getattr(config, "_attn_implementation", None),
            "memory_limit_bytes": None,
        }

    def _data(self, made):
        """The rows, as the trainer has them: packed ones hold several documents."""
        documents = lengths_of(self.rows.open(self.files.train))
        rows = len(made.train_dataset)
        longest = sorted(documents, reverse=True)[: self.recipe["batch"]["micro_batch"]]
        if self.settings.packs:
            longest = [self.recipe["batch"]["sequence_length"]] * self.recipe["batch"]["micro_batch"]
        tokens = sum(one["tokens"] for one in self.free)
        steps = self._steps_of_training(tokens / len(self.free))
        every = self.recipe["training"].get("evaluate_every") or steps
        return {
            "rows": rows,
            "mean_tokens_per_row": sum(documents) / rows,
            "mean_documents_per_row": len(documents) / rows,
            "largest_micro_batch_tokens": sum(longest),
            "target_share": sum(one["target_tokens"] for one in self.free) / max(tokens, 1),
            "training_steps": steps,
            "training_evaluations": -(-steps // max(every, 1)),
            "waits": self._waits(),
        }

    def _waits(self):
        """Waits for rows that this thread gets by itself; `None` where processes of a loader do, which are not seen."""
        if getattr(self.settings.training, "dataloader_num_workers", 0):
            return None
        seconds, steps = [one["seconds"] for one in self.free], len(self.free)
        data_s = sum(one["data"] for one in seconds)
        thread = None
        if len(self.data_uses) == steps:
            processor_s, read_bytes = (sum(column) / steps for column in zip(*self.data_uses))
            thread = {"processor_s": processor_s, "read_bytes": read_bytes}
        return {
            "prefetch_depth": 0,
            "preparing_s": data_s / steps,
            "compute_waits": min(data_s / sum(one["total"] for one in seconds), 1.0),
            "data_waits": 0.0,
            "thread": thread,
        }

    def _steps_of_training(self, tokens_per_step):
        length = self.recipe["training"]["length"]
        if "steps" in length:
            return length["steps"]
        if "epochs" in length:
            return max(round(length["epochs"] * self.files.steps_per_epoch), 1)
        return max(round(length["tokens"] / max(tokens_per_step, 1)), 1)

    def _memory(self, made):
        """The peak of the recorded steps in its parts. What is no tensor that has a name is an activation, or lives for a moment."""
        peak, whole = self.device.recorded_peak(self.recorder, self.held_bytes)
        of_model, trained = devices.bytes_of(devices.tensors_of(made.model)), trained_bytes(made.model)
        parts = {"base": of_model, "adapters": 0}
        if self.settings.model.use_peft:
            parts = {"base": of_model - trained, "adapters": trained}
        # Those of the first micro-batch are there from its backward pass on.
        accumulates = self.settings.training.gradient_accumulation_steps > 1
        parts["gradients"] = trained if accumulates else 0
        parts["optimizer"] = self.held_bytes - of_model
        peak = max(peak, sum(parts.values()))
        parts["activations"] = peak - sum(parts.values())
        return {
            "peak_bytes": peak,
            "peak_at": [],
            "parts": [{"part": name, "bytes": size} for name, size in parts.items() if size],
            "program_bytes": max((whole or 0) - peak, 0),
            "timeline": [],
        }

    def _arithmetic(self, ops):
        """FLOPs as the profiler counts them, of products; what is recomputed is not told apart."""
        recorded, free = ([one["tokens"] for one in steps] for steps in (self.recorded, self.free))
        ratio = (sum(free) / len(free)) / (sum(recorded) / len(recorded))
        flops = ratio * sum(one["flops"] for one in ops)
        recomputes = self.recipe["gradient_checkpointing"] != "none"
        return {
            "model_flops": None if recomputes else flops,
            "hardware_flops": flops,
            "peak_flops_per_s": None,
            "mfu": None,
            "hfu": None,
        }

    def _write_trace(self):
        """Writes the trace that was asked for; it appears when it is whole. Returns why not, where it could not be written."""
        path = self.request.get("trace")
        if path is None:
            return None
        part = f"{path}.{os.getpid()}.part.json"
        try:
            self.recorder.export_chrome_trace(part)
            os.replace(part, path)
        except (OSError, RuntimeError) as error:
            if os.path.exists(part):
                os.remove(part)
            return short(error)
        return None


def phase(name, seconds, interval, share, op_seconds):
    """A phase as a profile has it."""
    return {
        "phase": name,
        "seconds": seconds,
        "interval": interval,
        "share": share,
        "op_seconds": op_seconds,
        "nested": False,
    }


def counts_of(model, parameters):
    """Parameters that are trained, and all of them; codes of several weights in a byte are counted by who knows."""
    if hasattr(model, "get_nb_trainable_parameters"):
        return model.get_nb_trainable_parameters()
    trained = sum(one.numel() for one in parameters if one.requires_grad)
    return trained, sum(one.numel() for one in parameters)


def trained_bytes(model):
    """Bytes of the parameters that are trained."""
    return devices.bytes_of([one for one in model.parameters() if one.requires_grad])
