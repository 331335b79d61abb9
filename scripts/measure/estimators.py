#!/usr/bin/env python3
"""What other estimators say of published rows, beside our predictions: `estimators.py ROWS.json MODELS.json PREDICTED.jsonl`.

PREDICTED.jsonl is what `cargo run --release --example published -- ROWS.json MODELS.json` prints. Only rows that it says
something of are taken. Formulas, in words of our own:

accelerate  `accelerate estimate-memory` of accelerate 1.15 (`commands/estimate.py`): parameters of the model without its head
            times the bytes of the dtype; for a training by Adam four times the F32 weights (in mixed precision, whose largest
            part is named: twice). It knows no adapters, batch or length: of LoRA it has the weights alone.
unsloth     the estimate of unsloth Studio (`studio/backend/utils/hardware/vram_estimation.py`, November 2026): weights in 16
            bits or 4 (16/5 or 3.6 times smaller), adapters and gradients in 16 bits, 6 bytes of AdamW's states a value, 4 of
            8-bit ones, activations of one layer where layers are recomputed and of all otherwise, 1.4 GiB for CUDA.

Both are asked for what was published: the process where a row has it, else tensors (then without the 1.4 GiB).
"""

import json
import sys

from stacks import group, measured, quantile

GIB = 1 << 30
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
#: Bytes of a weight by dtype.
WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
CUDA = 1.4 * GIB
#: unsloth's bytes of optimizer states a trained value, by a part of the name.
STATES = [("paged_adamw_32bit", 8), ("8bit", 4), ("adamw", 6)]


class Sizes:
    """Dimensions of a decoder: shapes of its linear layers, and its other parameters."""

    def __init__(self, config):
        self.hidden, self.layers = config["hidden_size"], config["num_hidden_layers"]
        self.vocabulary = config["vocab_size"]
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or self.hidden // heads
        self.query, self.kv = heads * width, config.get("num_key_value_heads", heads) * width
        self.experts = config.get("num_local_experts") or config.get("num_experts") or 1
        self.active = config.get("num_experts_per_tok", 1) if self.experts > 1 else 1
        own = config.get("intermediate_size") or 4 * self.hidden
        self.mlp = config.get("moe_intermediate_size") or own if self.experts > 1 else own
        self.tied = config.get("tie_word_embeddings", True)

    def linears(self):
        hidden, query, kv, mlp = self.hidden, self.query, self.kv, self.mlp
        return {"q_proj": (hidden, query), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (query, hidden),
                "gate_proj": (hidden, mlp), "up_proj": (hidden, mlp), "down_proj": (mlp, hidden)}

    def linear_elements(self):
        one = {name: inner * outer for name, (inner, outer) in self.linears().items()}
        return self.layers * sum(one[name] * (self.experts if name in MLP else 1) for name in one)

    def others(self, with_head):
        embeddings = 2 if with_head and not self.tied else 1
        return embeddings * self.vocabulary * self.hidden + 2 * self.layers * self.hidden

    def adapter_elements(self, rank, targets):
        pairs = [(inner + outer) * rank * (self.experts if name in MLP else 1)
                 for name, (inner, outer) in self.linears().items() if name in targets]
        return self.layers * sum(pairs)


def targets_of(row):
    named = row["targets"] if isinstance(row["targets"], list) else [row["targets"] or "all"]
    every = ATTENTION + MLP
    wanted = [name for name in every if any(name in str(target) for target in named)]
    if any("DEFAULT" in str(target) or "c_attn" in str(target) for target in named):
        wanted += ATTENTION[:3]
    return wanted or every


def is_quantized(row):
    return row["method"] == "qlora" or bool(row["quantization"])


def accelerate(row, sizes):
    """GiB: weights in the row's dtype, or a training by Adam where all parameters are trained."""
    parameters = sizes.linear_elements() + sizes.others(with_head=False)
    if row["method"] == "full":
        largest = 4 if row["precision"] == "fp32" else 2
        return parameters * 4 * largest / GIB
    width = 0.5 if is_quantized(row) and "8" not in str(row["quantization"]) else WIDTHS.get(row["precision"], 2)
    return parameters * (1 if "int8" in str(row["quantization"]) else width) / GIB


def unsloth(row, sizes, with_cuda):
    """GiB of one device."""
    linear, others = sizes.linear_elements(), sizes.others(with_head=True)
    smaller = 3.6 if "double" in str(row["quantization"]) else 16 / 5
    weights = 2 * (linear / smaller + others) if is_quantized(row) else 2 * (linear + others)
    is_lora = row["method"] != "full"
    trained = sizes.adapter_elements(row["rank"] or 8, targets_of(row)) if is_lora else linear + others
    adapters = 2 * trained if is_lora else 0
    name = (row["optimizer"] or "adamw").lower()
    states = trained * next((size for part, size in STATES if part in name), 4)
    tokens = row["micro_batch"] * row["sequence_length"]
    layer = tokens * (sizes.query + 2 * sizes.kv + 2 + 2 * sizes.mlp * sizes.active) * 2.5
    at_once = (1 if is_lora else 2) if row["checkpointing"] else sizes.layers
    activations = layer * at_once
    if "eager" in str(row["attention"]).lower():
        scores = row["micro_batch"] * (sizes.query // 64) * row["sequence_length"] ** 2
        activations = max(activations, scores * 24 * at_once)
    floor = 0.15 * weights
    gradients = max(2 * trained, min(floor, max(activations, states)) if is_lora else floor)
    devices = row["num_gpus"] or 1
    return ((weights + adapters + states + gradients) / devices + activations + (CUDA if with_cuda else 0)) / GIB


def main():
    rows = {row["id"]: row for row in json.load(open(sys.argv[1]))}
    models = json.load(open(sys.argv[2]))
    table = {}
    for line in map(json.loads, open(sys.argv[3])):
        row = rows[line["id"]]
        tensors, process, _ = measured(row)
        was = process or tensors
        if line["peak_tensors_gib"] is None or not was:
            continue
        sizes = Sizes(models[row["model"]])
        said = (line["peak_process_gib" if process else "peak_tensors_gib"], unsloth(row, sizes, bool(process)),
                accelerate(row, sizes))
        what = "process" if process else "tensors"
        table.setdefault((group(row), what), []).append([value / was - 1 for value in said])
    names = ("peft-tune", "unsloth's formula", "accelerate estimate-memory")
    print("| source | rows | of | " + " | ".join(names) + " |\n|---|---|---|---|---|---|")
    for (source, what), errors in sorted(table.items()):
        cells = []
        for column in zip(*errors):
            high = sorted(map(abs, column))
            low = sum(error < -0.1 for error in column)
            cells.append(f"{quantile(high, 0.5):.1%}, {quantile(high, 0.9):.1%}; {low} low")
        print(f"| {source} | {len(errors)} | {what} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
