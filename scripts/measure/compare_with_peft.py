#!/usr/bin/env python3
"""A training step of peft-tune beside PEFT's: tokens/s and resident memory, on the same model, tokens and machine.

    scripts/measure/compare_with_peft.py --binary target/release/peft-tune [--shapes 135m,5m] [--precisions fp32,bf16]
        [--checkpointing none,full] [--values fp32] [--threads 2] [--rounds 2] [--eager] [--work DIR]
        [--json FILE]

Needs torch, transformers and peft. LoRA of rank 16 on all linear layers of attention and MLP, AdamW without weight decay
and clipping, batch 4 x 256 tokens. In a mixture the experts have adapters in the place of the MLP; a dense model whose MLP
has the width of the experts that a token goes through stands beside each (`moe-5m` and `moe-5m-dense`). The models are random, made once in the work folder. For each setting PEFT runs in eager mode and
compiled, and peft-tune runs in between, `--rounds` times in turn, each in a process of its own; the table has the
median over the rounds of each side's median step, and ratios against the better of PEFT's two modes. Peak memory is the
highest resident set of the process while it trains; what loading needed before is counted on neither side.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH, LENGTH, RANK, ROWS = 4, 256, 16, 64
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


def mixture(experts, chosen, width, **sizes):
    """A mixture of experts of one width, and the dense model with the multiplications that a token meets in it."""
    dense = dict(model_type="qwen3", intermediate_size=chosen * width, **sizes)
    return dict(dense, model_type="qwen3_moe", num_experts=experts, num_experts_per_tok=chosen,
                moe_intermediate_size=width, norm_topk_prob=True), dense


SHAPES = {
    "135m": dict(model_type="llama", hidden_size=576, num_hidden_layers=30, num_attention_heads=9,
                 num_key_value_heads=3, intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True),
    "5m": dict(model_type="llama", hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
               intermediate_size=688, vocab_size=4096, tie_word_embeddings=False),
}
SHAPES["smollm3-135m"] = dict(SHAPES["135m"], model_type="smollm3")
SHAPES["moe-5m"], SHAPES["moe-5m-dense"] = mixture(
    16, 4, 176, hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
    vocab_size=4096, tie_word_embeddings=False)
# 0.5 of 2.4 billion numbers are active.
SHAPES["moe-500m"], SHAPES["moe-500m-dense"] = mixture(
    32, 4, 768, hidden_size=1536, num_hidden_layers=20, num_attention_heads=24, num_key_value_heads=6, head_dim=64,
    vocab_size=32768, tie_word_embeddings=False)
# Steps before and of the measurement; compiled code takes its first ones to compile.
STEPS = {"5m": (4, 12), "moe-5m": (4, 12), "moe-5m-dense": (4, 12), "moe-500m": (1, 3), "moe-500m-dense": (1, 3)}
FEW_STEPS = (2, 5)


def targets(shape):
    """Modules and parameters with adapters."""
    return (ATTENTION, EXPERTS) if "num_experts" in SHAPES[shape] else (ATTENTION + MLP, None)


def make_model(shape, folder, values):
    """Writes a random model and the rows to train on, unless they are there; F32 weights, or BF16 values in F32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    if (folder / "rows.jsonl").exists():
        return print("{}")
    set_seed(0)
    dtype = torch.bfloat16 if shape.startswith("moe-500m") else torch.float32
    config = AutoConfig.for_model(**SHAPES[shape], max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1,
                                  eos_token_id=2, pad_token_id=2)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if values == "bf16":
        model = model.to(torch.bfloat16).to(dtype)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(3, config.vocab_size, (ROWS, LENGTH), generator=generator).tolist()
    lines = (json.dumps({"input_ids": row, "labels": row}) for row in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    print("{}")


def memory_bytes(key, process="self"):
    """A field of a process's status, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def run_peft(settings):
    """Trains with PEFT in this process and prints what it measured."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(settings["threads"])
    is_half = settings["precision"] == "bf16"
    dtype = torch.bfloat16 if is_half else torch.float32
    folder = Path(settings["model"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    if settings["checkpointing"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    modules, parameters = targets(settings["shape"])
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=modules,
                                             target_parameters=parameters, task_type="CAUSAL_LM"))
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
    rows = [json.loads(line)["input_ids"] for line in (folder / "rows.jsonl").read_text().splitlines()]
    forward = torch.compile(model) if settings["compiled"] else model
    # Loading needs more than training: the peak is counted from here.
    Path("/proc/self/clear_refs").write_text("5")
    warm_up, steps = STEPS.get(settings["shape"], FEW_STEPS)
    seconds = []
    for step in range(warm_up + steps):
        first = step * BATCH % len(rows)
        ids = torch.tensor(rows[first:first + BATCH])
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    tokens_per_s = BATCH * LENGTH / statistics.median(seconds[warm_up:])
    print(json.dumps({"tokens_per_s": tokens_per_s, "peak_bytes": memory_bytes("VmHWM")}))


def in_process(side, settings):
    """Runs this script's hidden `side` in a process of its own; returns what it prints last."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(settings["threads"]), HF_HUB_OFFLINE="1",
                       TRANSFORMERS_VERBOSITY="error")
    command = [sys.executable, __file__, "--side", side, "--settings", json.dumps(settings)]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(output.stdout.splitlines()[-1])


def ours(binary, settings):
    """Runs `peft-tune train` on the same model and rows."""
    model, (warm_up, steps) = Path(settings["model"]), STEPS.get(settings["shape"], FEW_STEPS)
    modules, parameters = targets(settings["shape"])
    recipe = {
        "model": str(model),
        "data": {"train": str(model / "rows.jsonl"), "held_out": str(model / "rows.jsonl"), "format": "tokenized"},
        "adapter": {"rank": RANK, "alpha": 2 * RANK, "target_modules": modules,
                    **({"target_parameters": parameters} if parameters else {})},
        "precision": settings["precision"],
        "batch": {"micro_batch": BATCH, "sequence_length": LENGTH},
        "gradient_checkpointing": settings["checkpointing"],
        "optimizer": {"learning_rate": 0.001, "max_grad_norm": None},
        "schedule": {"kind": "constant"},
        "training": {"length": {"steps": warm_up + steps}, "shuffle": False, "evaluation_rows": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(json.dumps(recipe))  # YAML holds JSON
        environment = dict(os.environ, RAYON_NUM_THREADS=str(settings["threads"]))
        command = [binary, "train", str(path), "--output", str(Path(folder) / "run"), "--json"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        lines, peak = [], 0
        for line in process.stdout:
            # Loading needs more than training here too: the peak is counted from the first line on.
            if not lines:
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            elif b'"step"' in line:
                peak = memory_bytes("VmHWM", process.pid)
            lines.append(line)
        status = process.wait()
    if status:
        raise SystemExit(f"`{' '.join(command)}` failed: run it by hand to see why")
    rates = [line["tokens_per_s"] for line in map(json.loads, lines) if line.get("event") == "step"]
    return {"tokens_per_s": statistics.median(rates[warm_up:]), "peak_bytes": peak}


def middle(results, key):
    return statistics.median(result[key] for result in results)


def compare(arguments, shape, precision, checkpointing, model):
    """One line of the table."""
    settings = dict(shape=shape, precision=precision, checkpointing=checkpointing, model=str(model),
                    threads=arguments.threads)
    sides = {"eager": [], "ours": [], "compiled": []}
    for _ in range(arguments.rounds):
        sides["eager"].append(in_process("peft", dict(settings, compiled=False)))
        sides["ours"].append(ours(arguments.binary, settings))
        if not arguments.eager:
            sides["compiled"].append(in_process("peft", dict(settings, compiled=True)))
    sides = {side: results for side, results in sides.items() if results}
    line = dict(shape=shape, precision=precision, checkpointing=checkpointing)
    for side, results in sides.items():
        line[side] = middle(results, "tokens_per_s")
        line[f"{side}_bytes"] = middle(results, "peak_bytes")
    return line


def table(lines):
    yield ("| model | precision | checkpointing | PEFT eager | PEFT compiled | ours | ratio "
           "| PEFT eager MB | PEFT compiled MB | ours MB | ratio |")
    yield "|" + "---|" * 11
    for line in lines:
        peft = [mode for mode in ("eager", "compiled") if mode in line]
        ratio = line["ours"] / max(line[mode] for mode in peft)
        memory = line["ours_bytes"] / min(line[f"{mode}_bytes"] for mode in peft)
        rates = {side: f"{line[side]:,.0f}" if side in line else "-" for side in ("eager", "compiled", "ours")}
        megabytes = {side: f"{line[f'{side}_bytes'] / 1e6:,.0f}" if side in line else "-" for side in rates}
        yield (f"| {line['shape']} | {line['precision']} | {line['checkpointing']} | {rates['eager']} "
               f"| {rates['compiled']} | {rates['ours']} | {ratio:.2f} | {megabytes['eager']} "
               f"| {megabytes['compiled']} | {megabytes['ours']} | {memory:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune")
    parser.add_argument("--shapes", default="5m,135m")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--checkpointing", default="none,full")
    parser.add_argument("--values", choices=["fp32", "bf16"], default="fp32",
                        help="what the weights hold: any F32 value, or BF16 values as a BF16 checkpoint loaded in fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="leave PEFT's compiled mode out: it takes minutes to compile")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "compare_with_peft")
    parser.add_argument("--json", type=Path, help="file that gets one JSON object for each line")
    parser.add_argument("--side", choices=["model", "peft"], help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "model":
        settings = arguments.settings
        return make_model(settings["shape"], Path(settings["model"]), settings["values"])
    if arguments.side == "peft":
        return run_peft(arguments.settings)
    lines = []
    for shape in arguments.shapes.split(","):
        model = arguments.work / (shape if arguments.values == "fp32" else f"{shape}-{arguments.values}")
        # torch stays out of this process: a child's resident set begins with that of its parent.
        in_process("model", dict(shape=shape, model=str(model), threads=arguments.threads, values=arguments.values))
        for precision in arguments.precisions.split(","):
            for checkpointing in arguments.checkpointing.split(","):
                lines.append(compare(arguments, shape, precision, checkpointing, model))
                print(list(table(lines[-1:]))[-1], file=sys.stderr)
    print("\n".join(table(lines)))
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
