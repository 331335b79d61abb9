"""Numbers of the reference optimizers, schedules and gradient clipping.

Made with torch 2.15.0, transformers 5.23.0, bitsandbytes 0.50.2 and schedulefree 1.4.1 on a CPU:
    TORCHDYNAMO_DISABLE=1 python make.py

Writes whole.safetensors: the parameters `start.*` and their gradients `gradient.STEP.*` for four steps; changes.safetensors:
samples (`../sample.py`) of what each optimizer adds to the parameters in these steps, `OPTIMIZER.*`; schedules.json: learning
rates of twelve steps; clip.json.
Schedule-Free AdamW takes 24 steps with the same gradients, halved from one round of four to the next; its changes are those
that its `eval()` shows. In whole.safetensors `adamw_8bit.lost.*` is 1 where 8-bit AdamW had states that no gradients lead to
(`make_8bit.py`): its numbers are not to be matched there, and its changes are given as 0. `map.*` are bitsandbytes' 8-bit codes.
"""

import json
import math
import pathlib
import sys

import bitsandbytes as bnb
import bitsandbytes.functional as bnb_functional
import torch
from bitsandbytes.backends.triton.kernels_optim import (
    _dequantize_blockwise_pytorch,
    optimizer_update_8bit_blockwise_pytorch,
)
from safetensors.torch import save_file
from schedulefree import AdamWScheduleFree
from transformers.optimization import (
    Adafactor,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from sample import sampled

torch.set_num_threads(1)
STEPS = 4
# Two of the matrices reach the 4096 elements from which bitsandbytes keeps 8-bit states; neither is a multiple of 256.
SHAPES = {
    "small.lora_A": (8, 24),
    "wide.lora_A": (16, 260),
    "small.lora_B": (40, 8),
    "tall.lora_B": (258, 16),
    "small.bias": (40,),
}
generator = torch.Generator().manual_seed(3)


def random(shape):
    return torch.randn(shape, generator=generator)


start = {name: random(shape) * 0.05 for name, shape in SHAPES.items()}
# Magnitudes over four decades, so that 8-bit states are tried over much of their range.
gradients = [
    {name: random(shape) * 10 ** (-4 * torch.rand(shape, generator=generator)) for name, shape in SHAPES.items()}
    for _ in range(STEPS)
]
whole = {f"start.{name}": value for name, value in start.items()}
for step, of_step in enumerate(gradients):
    whole.update({f"gradient.{step}.{name}": value for name, value in of_step.items()})
changes = {}


def fresh():
    return {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}


def note_changes(name, parameters):
    changes.update({f"{name}.{key}": parameter.detach() - start[key] for key, parameter in parameters.items()})


def run(name, make):
    """Four steps of the optimizer that `make` builds from parameters by name."""
    parameters = fresh()
    optimizer = make(parameters)
    for of_step in gradients:
        for key, parameter in parameters.items():
            parameter.grad = of_step[key].clone()
        optimizer.step()
    note_changes(name, parameters)


def groups(parameters, decay, ratio=1.0, rate=1e-2):
    """Weight decay on matrices only; vectors and lora_B at `ratio` times the rate."""
    made = []
    for key, parameter in parameters.items():
        fast = key.endswith("lora_B") or parameter.ndim == 1
        made.append(
            dict(
                params=[parameter],
                lr=rate * (ratio if fast else 1.0),
                weight_decay=decay if parameter.ndim > 1 else 0.0,
            )
        )
    return made


run("adamw", lambda p: torch.optim.AdamW(groups(p, 0.0), foreach=False))
run("adamw_decay", lambda p: torch.optim.AdamW(groups(p, 0.1), betas=(0.8, 0.95), eps=1e-6, foreach=False))
run("loraplus", lambda p: torch.optim.AdamW(groups(p, 0.1, ratio=16.0), foreach=False))
run("sgd", lambda p: torch.optim.SGD(groups(p, 0.1, rate=0.1), foreach=False))
run("sgd_momentum", lambda p: torch.optim.SGD(groups(p, 0.1, rate=0.1), momentum=0.9, foreach=False))
run("sgd_nesterov", lambda p: torch.optim.SGD(groups(p, 0.1, rate=0.1), momentum=0.9, nesterov=True, foreach=False))
run("lion", lambda p: bnb.optim.Lion32bit(groups(p, 0.1, rate=1e-3), betas=(0.9, 0.99)))
run("paged_adamw", lambda p: bnb.optim.PagedAdamW32bit(groups(p, 0.1), betas=(0.8, 0.95), eps=1e-6))
run(
    "adafactor",
    lambda p: Adafactor(groups(p, 0.1), scale_parameter=False, relative_step=False, warmup_init=False),
)


class Muon:
    """torch.optim.Muon for matrices, AdamW for vectors, which Muon does not take."""

    def __init__(self, parameters):
        matrices = [p for p in parameters.values() if p.ndim == 2]
        vectors = [p for p in parameters.values() if p.ndim == 1]
        self.parts = [
            torch.optim.Muon(matrices, lr=2e-3, weight_decay=0.1, momentum=0.95),
            torch.optim.AdamW(vectors, lr=2e-3, weight_decay=0.0, foreach=False),
        ]

    def step(self):
        for part in self.parts:
            part.step()


run("muon", Muon)


class Blockwise:
    """bitsandbytes' 8-bit optimizers with the update of its plain PyTorch backend: it takes the nearest code, as the
    CUDA kernel does. (Its CPU kernel looks codes up in a table of 65536 entries, which loses the small ones.)"""

    def __init__(self, groups, name, betas, eps=1e-8):
        self.groups, self.name, self.betas, self.eps = groups, name, betas, eps
        self.state = {}
        self.steps = 0
        self.signed = bnb_functional.create_dynamic_map(signed=True)
        self.unsigned = bnb_functional.create_dynamic_map(signed=False)
        self.lost = {}

    def step(self):
        self.steps += 1
        for group in self.groups:
            for parameter in group["params"]:
                self.update(parameter, group)

    def update(self, p, group):
        two = self.name == "adam"
        if p.numel() < 4096:
            if p not in self.state:
                self.state[p] = [torch.zeros_like(p), torch.zeros_like(p) if two else None]
            first, second = self.state[p]
            torch.ops.bitsandbytes.optimizer_update_32bit(
                self.name, p.grad, p, first, second, None, 0.0, 0.0, *self.betas, 0.0, 0.0, self.eps,
                group["weight_decay"], self.steps, group["lr"], 1.0, False,
            )  # fmt: skip
            return
        if p not in self.state:
            blocks = math.ceil(p.numel() / 256)
            first = torch.full(p.shape, 127, dtype=torch.uint8)  # the code of zero
            second = torch.zeros(p.shape, dtype=torch.uint8)
            self.state[p] = [first, second if two else None, torch.zeros(blocks), torch.zeros(blocks)]
        first, second, absmax1, absmax2 = self.state[p]
        if two:
            self.note_lost(p)
        optimizer_update_8bit_blockwise_pytorch(
            p, p.grad, first, second, *self.betas, 0.0, 0.0, self.eps, self.steps, group["lr"], self.signed,
            self.unsigned if two else None, absmax1, absmax2 if two else None, group["weight_decay"], 1.0, False,
            optimizer_name=self.name,
        )  # fmt: skip

    def note_lost(self, p):
        """Where the square of the first state is more than the second one allows."""
        first, second, absmax1, absmax2 = self.state[p]
        mean = _dequantize_blockwise_pytorch(first, absmax1, self.signed, 256, torch.float32)
        square = _dequantize_blockwise_pytorch(second, absmax2, self.unsigned, 256, torch.float32)
        beta1, beta2 = self.betas
        law = (1 - beta2) * (1 - beta1**2 / beta2) / (1 - beta1) ** 2
        self.lost[p] = self.lost.get(p, torch.zeros_like(first)) | (law * mean * mean > square).to(torch.uint8)


def run_adamw_8bit():
    made = {}

    def make(parameters):
        made["names"] = {parameter: name for name, parameter in parameters.items()}
        made["optimizer"] = Blockwise(groups(parameters, 0.1), "adam", (0.9, 0.999))
        return made["optimizer"]

    run("adamw_8bit", make)
    for parameter, name in made["names"].items():
        lost = made["optimizer"].lost.get(parameter, torch.zeros(parameter.shape, dtype=torch.uint8))
        whole[f"adamw_8bit.lost.{name}"] = lost
        changes[f"adamw_8bit.{name}"][lost != 0] = 0.0


run_adamw_8bit()
run("lion_8bit", lambda p: Blockwise(groups(p, 0.1, rate=1e-3), "lion", (0.9, 0.99)))


def run_schedule_free(name, make):
    """24 steps of the optimizer that `make` builds from parameters by name."""
    parameters = fresh()
    optimizer = make(parameters)
    optimizer.train()
    for step in range(24):
        for key, parameter in parameters.items():
            parameter.grad = gradients[step % STEPS][key] * 0.5 ** (step // STEPS)
        optimizer.step()
    optimizer.eval()
    note_changes(name, parameters)


run_schedule_free("schedule_free", lambda p: AdamWScheduleFree(groups(p, 0.0), foreach=False))
run_schedule_free(
    "schedule_free_warmup",
    lambda p: AdamWScheduleFree(
        groups(p, 0.1, ratio=16.0), betas=(0.95, 0.99), eps=1e-6, warmup_steps=5, foreach=False
    ),
)
whole["map.signed"] = bnb_functional.create_dynamic_map(signed=True)
whole["map.unsigned"] = bnb_functional.create_dynamic_map(signed=False)
save_file({name: value.contiguous() for name, value in whole.items()}, "whole.safetensors")
save_file(sampled(changes), "changes.safetensors")


def rates(schedule):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = schedule(optimizer)
    made = []
    for _ in range(12):
        made.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return made


json.dump(
    {
        "constant_warmup3": rates(lambda o: get_constant_schedule_with_warmup(o, 3)),
        "linear_warmup3": rates(lambda o: get_linear_schedule_with_warmup(o, 3, 10)),
        "cosine_warmup3": rates(lambda o: get_cosine_schedule_with_warmup(o, 3, 10)),
        "cosine_warmup0": rates(lambda o: get_cosine_schedule_with_warmup(o, 0, 10)),
        "cosine_with_min_lr": rates(
            lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, 3, 10, min_lr_rate=0.1)
        ),
        "wsd": rates(lambda o: get_wsd_schedule(o, 3, 4, num_training_steps=10)),
        "wsd_linear": rates(lambda o: get_wsd_schedule(o, 0, 5, num_training_steps=10, decay_type="linear")),
        "wsd_sqrt": rates(
            lambda o: get_wsd_schedule(o, 2, 6, num_training_steps=10, decay_type="1-sqrt", min_lr_ratio=0.1)
        ),
    },
    open("schedules.json", "w"),
    indent=1,
)

clipped = {}
for limit in (0.5, 1000.0):
    parameters = fresh()
    for key, parameter in parameters.items():
        parameter.grad = gradients[0][key].clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), limit)
    clipped[str(limit)] = dict(norm=norm.item(), first=[p.grad.flatten()[0].item() for p in parameters.values()])
json.dump(clipped, open("clip.json", "w"), indent=1)
