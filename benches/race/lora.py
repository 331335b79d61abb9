"""The LoRA problem of the race as a program that a study runs: one trial, step by step.

Reads one JSON object with the params, prints the loss after every step, throughput and memory with the second, and ends at
once where the setting does not fit into memory. The formulas are those of `problems.rs`.
"""

import json
import math
import sys
import time

LAYERS, HIDDEN, INNER, VOCABULARY, TOKENS_A_ROW, PARAMETERS = 24, 2048, 5632, 32000, 1024, 1.5e9
CAPACITY_GIB, STEPS, EARLY = 24.0, 100, 2
# Long enough for a program to be stopped before its next step.
SECONDS_A_STEP = 0.02


class Trial:
    def __init__(self, params):
        self.params = params
        self.quantised_twice = 1 if params.get("double_quant") else 0
        per_layer = {"qv": 4 * HIDDEN, "attn": 8 * HIDDEN, "all": 8 * HIDDEN + 3 * (HIDDEN + INNER)}
        self.per_layer = per_layer[params["targets"]]
        self.adapters = params["rank"] * self.per_layer * LAYERS
        self.tokens = params["batch"] * TOKENS_A_ROW

    def memory_gib(self):
        p = self.params
        weights = {"fp32": 4.0, "bf16": 2.0, "int8": 1.05, "nf4": 0.56}[p["precision"]] - 0.04 * self.quantised_twice
        state = {"adamw": 8.0, "adamw8bit": 2.0, "lion": 4.0, "adafactor": 0.2, "sgd": 4.0}[p["optimizer"]]
        width = 2.0 if p["precision"] == "fp32" else 1.0
        kept = 2 * HIDDEN * LAYERS + 34 * HIDDEN if p["grad_ckpt"] else 34 * HIDDEN * LAYERS
        side = 2.0 * self.adapters / (HIDDEN * LAYERS) * self.tokens * width * (0.25 if p["grad_ckpt"] else 1.0)
        activations = width * kept * self.tokens + side
        logits = 8.0 * VOCABULARY * self.tokens
        return 1.04 * (PARAMETERS * weights + self.adapters * (8.0 + state) + activations + logits) / 2**30 + 0.8

    def throughput(self):
        p = self.params
        peak = {"fp32": 60e12, "bf16": 150e12, "int8": 90e12, "nf4": 120e12}[p["precision"]]
        efficiency = self.tokens / (self.tokens + 2500.0)
        flops = self.tokens * (PARAMETERS * (6.0 if p["grad_ckpt"] else 4.0) + 6.0 * self.adapters)
        overhead = 0.020 + 0.0006 * LAYERS * {"qv": 2, "attn": 4, "all": 7}[p["targets"]] / 2
        overhead += {"adamw": 0.004, "adamw8bit": 0.007, "lion": 0.003, "adafactor": 0.010, "sgd": 0.002}[p["optimizer"]]
        dequantise = {"fp32": 0.0, "bf16": 0.0, "int8": 0.030, "nf4": 0.022}[p["precision"]]
        overhead += dequantise * (1.5 if p["grad_ckpt"] else 1.0) + 0.004 * self.quantised_twice
        return self.tokens / (overhead + flops / (peak * efficiency))

    def loss(self, steps):
        p = self.params
        best = {"adamw": 3e-4, "adamw8bit": 3e-4, "lion": 6e-5, "adafactor": 8e-4, "sgd": 2e-2}[p["optimizer"]]
        best *= math.sqrt(p["batch"] / 8.0) * math.sqrt(2.0 / p["alpha_ratio"]) * (32.0 / p["rank"]) ** 0.15
        off = math.log10(p["lr"] / best)
        penalty = 1.6 * math.tanh(off * off * (0.45 if off < 0 else 0.9) / 1.6)
        capacity = p["rank"] * self.per_layer / (16.0 * 8 * HIDDEN)
        end = 1.80 + 0.16 * capacity**-0.45
        end += 0.10 * (p["dropout"] - 0.06) ** 2 / 0.01 * (0.3 + 0.1 * math.log2(p["rank"] / 4 + 1))
        end += {"fp32": 0.0, "bf16": 0.004, "int8": 0.012, "nf4": 0.035}[p["precision"]] + 0.004 * self.quantised_twice
        end += {"adamw": 0.0, "adamw8bit": 0.006, "lion": 0.015, "adafactor": 0.030, "sgd": 0.10}[p["optimizer"]]
        if p["optimizer"] == "sgd":
            end += 1.2 * (p["momentum"] - 0.9) ** 2
        half_life = 12.0 * (8.0 / p["batch"]) ** 0.35 * (1.0 + 1.5 * penalty)
        return end + penalty + 1.1 * (1.0 + steps / half_life) ** -0.9


def main():
    trial = Trial(json.loads(sys.stdin.readline())["params"])
    memory = trial.memory_gib()
    costs = {"speed": -trial.throughput() / 10000.0, "memory": memory / CAPACITY_GIB}
    for step in range(1, STEPS + 1):
        time.sleep(SECONDS_A_STEP)
        if step == EARLY and memory > CAPACITY_GIB:
            print(json.dumps({"outcome": "out_of_memory"}), flush=True)
            return
        metrics = {"loss": trial.loss(step) - 1.8, **(costs if step == EARLY else {})}
        print(json.dumps({"step": step, "metrics": metrics}), flush=True)
    print(json.dumps({"metrics": {"loss": trial.loss(STEPS) - 1.8, **costs}}), flush=True)


main()
