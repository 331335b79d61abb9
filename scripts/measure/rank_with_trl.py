#!/usr/bin/env python3
"""Whether settings stand in the same order here and in TRL: speed, peak memory and held-out loss of twenty of them.

    scripts/measure/rank_with_trl.py --binary target/release/peft-tune [--count 20] [--tokens 5000]
        [--model quickstart|25m] [--csv FILE]

Needs torch, transformers, peft and trl. The settings are drawn at random (seed 1) for the quickstart's data and its
model, or one of 25 million random parameters with its tokenizer. Both
programs get the same rows, tokenised before, in the order of the file, in the same batches, and train as many steps with the
same optimizer, rates and clipping (none). What differs: the first values of the adapters are drawn by different generators,
and in bf16 TRL's products run under autocast. Each program runs on one thread, and one right after the other.

speed    tokens/s of CPU time: other programs on the machine then change little. Ours is what a long training takes beyond a
         short one, TRL's the median of its steps
memory   ours is the peak that `profile` counts; TRL's the peak of tensors of its allocator, over steps of the longest batch
loss     held-out loss over the same 200 rows, each target token counted once
"""

import argparse
import csv
import datetime
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from beside_trl import (RANDOM, ROOT, Watch, forked, held_bytes, highest_taken, import_all, make_model_in, spearman, trl_file,
                        warm_trl)

SPACE = {
    "rank": [2, 4, 8, 16, 32], "targets": ["attention", "mlp", "all"], "learning_rate": [1e-3, 3e-3, 1e-2, 3e-2],
    "micro_batch": [1, 2, 4, 8], "global_batch": [8, 16], "precision": ["fp32", "bf16"], "checkpointing": [False, True],
    "sequence_length": [32, 64, 128], "optimizer": ["adamw"],
}
DATA = ROOT / "search_spaces/quickstart"
BASE = DATA / "base"
METRICS = {"speed": "tokens/s", "memory": "MB", "loss": "held-out loss"}


def drawn(count):
    generator = random.Random(1)
    seen = []
    while len(seen) < count:
        setting = {name: generator.choice(values) for name, values in SPACE.items()}
        if setting not in seen:
            seen.append(setting)
    return seen


def tokenised(path, length):
    """Rows of tokens; the question is no target."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(BASE)
    rows = []
    for line in path.read_text().splitlines():
        messages = json.loads(line)["messages"]
        whole, asked = ((lambda said: said if isinstance(said, list) else said["input_ids"])(
            tokenizer.apply_chat_template(part, tokenize=True, add_generation_prompt=is_open))
            for part, is_open in ((messages, False), (messages[:-1], True)))
        labels = [-100] * len(asked) + whole[len(asked):]
        if any(label >= 0 for label in labels[1:length]):
            rows.append({"input_ids": whole[:length], "labels": labels[:length]})
    return rows


def write_rows(folder, length):
    for name in ("train", "held_out"):
        rows = tokenised(DATA / f"{name}.jsonl", length)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return True


def read_rows(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def steps_of(setting, rows, tokens):
    """Steps until so many tokens were read."""
    read = steps = 0
    while read < tokens:
        first = steps * setting["global_batch"] % len(rows)
        read += sum(len(row["input_ids"]) for row in rows[first:first + setting["global_batch"]])
        steps += 1
    return steps


def trl_trainer(setting, rows, steps, watch):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

    folder = tempfile.mkdtemp(prefix="rank-trl-")
    said = {**setting, "precision": setting["precision"]}
    path = Path(folder) / "trl.yaml"
    trl_file(said, BASE, path)
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("learning_rate", "gradient_accumulation"))]
    path.write_text("\n".join(lines) + "\n")
    arguments, of_model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config(
        ["--config", str(path), "--output_dir", folder, "--max_steps", str(steps), "--use_cpu", "true", "--save_strategy", "no",
         "--report_to", "none", "--disable_tqdm", "true", "--logging_strategy", "no", "--learning_rate",
         str(setting["learning_rate"]), "--lr_scheduler_type", "constant", "--max_grad_norm", "0", "--weight_decay", "0",
         "--gradient_accumulation_steps", str(setting["global_batch"] // setting["micro_batch"])])

    class Times(TrainerCallback):
        def on_step_begin(self, *_, **__):
            watch.begin()

        def on_step_end(self, *_, **__):
            watch.end()

    class InOrder(SFTTrainer):
        """Batches in the order of the file."""

        def _get_train_sampler(self, *_, **__):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    dtype = torch.float32 if setting["precision"] == "fp32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=dtype, attn_implementation="sdpa")
    trainer = InOrder(model=model, args=arguments, train_dataset=Dataset.from_list(rows), callbacks=[Times()],
                      peft_config=get_peft_config(of_model), processing_class=AutoTokenizer.from_pretrained(BASE))
    watch.held = trainer.model
    return trainer


def held_out_loss(model, rows, is_half):
    """Mean over all target tokens."""
    import torch

    model.eval()
    total, count = 0.0, 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        for row in rows:
            ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"][1:])
            logits = model(input_ids=ids).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
            count += int((labels >= 0).sum())
    return total / count


def trl_trained(setting, folder, tokens):
    rows = read_rows(folder, "train")
    watch = Watch()
    trainer = trl_trainer(setting, rows, steps_of(setting, rows, tokens), watch)
    trainer.train()
    size = setting["global_batch"]
    lengths = [len(row["input_ids"]) for row in rows]
    rates = []
    for step, seconds in enumerate(watch.times):
        first = step * size % len(rows)
        rates.append(sum(lengths[first:first + size]) / seconds)
    loss = held_out_loss(trainer.model, read_rows(folder, "held_out"), setting["precision"] != "fp32")
    return {"speed": statistics.median(rates[2:]), "loss": loss}


def trl_memory(setting, folder):
    import torch

    warm_trl(setting)
    size = setting["micro_batch"]
    rows = read_rows(folder, "train")
    batches = [rows[first:first + size] for first in range(0, len(rows) - size, size)]
    longest = max(batches, key=lambda batch: max(len(row["input_ids"]) for row in batch))
    watch = Watch()
    repeated = longest * (2 * setting["global_batch"] // size)
    trainer = trl_trainer(setting, repeated, 2, watch)
    held = held_bytes(watch.held)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        trainer.train()
    return {"memory": (held + highest_taken(profile)) / 1e6}


def ours(binary, command, setting, folder, steps, *more):
    """Runs a command on the recipe; its lines of JSON, and its CPU seconds."""
    from beside_trl import TARGETS

    recipe = {
        "model": str(BASE),
        "data": {"train": str(folder / "train.jsonl"), "held_out": str(folder / "held_out.jsonl"), "format": "tokenized"},
        "adapter": {"rank": setting["rank"], "alpha": 2 * setting["rank"], "target_modules": TARGETS[setting["targets"]]},
        "precision": setting["precision"],
        "batch": {"micro_batch": setting["micro_batch"], "sequence_length": setting["sequence_length"],
                  "gradient_accumulation": setting["global_batch"] // setting["micro_batch"]},
        "gradient_checkpointing": "full" if setting["checkpointing"] else "none",
        "optimizer": {"learning_rate": setting["learning_rate"], "weight_decay": 0.0, "max_grad_norm": None},
        "schedule": {"kind": "constant"},
        "training": {"length": {"steps": steps}, "shuffle": False, "evaluation_rows": 200},
    }
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "recipe.yaml"
        path.write_text(json.dumps(recipe))
        environment = dict(os.environ, RAYON_NUM_THREADS="1")
        process = subprocess.Popen([binary, command, str(path), "--json", *(part.format(work=work) for part in more)],
                                   env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=work)
        said = process.stdout.read()
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"peft-tune {command} failed: {errors}")
    return said, usage.ru_utime + usage.ru_stime


def ours_trained(binary, setting, folder, tokens):
    rows = read_rows(folder, "train")
    steps = steps_of(setting, rows, tokens)
    long, short = (ours(binary, "train", setting, folder, count, "--output", "{work}/run") for count in (8 * steps, steps))
    ends = [json.loads(said.splitlines()[-1]) for said, _ in (long, short)]
    speed = (ends[0]["tokens"] - ends[1]["tokens"]) / max(long[1] - short[1], 1e-3)
    profile, _ = ours(binary, "profile", setting, folder, steps, "--budget", "2s")
    memory = json.loads(profile)["profile"]["memory"]["peak_bytes"]
    return {"speed": speed, "loss": ends[1]["held_out_loss"], "memory": memory / 1e6}


def main():
    global BASE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--model", choices=["quickstart", "25m"], default="quickstart")
    parser.add_argument("--csv", type=Path, help="file that gets one line for each setting")
    parser.add_argument("--machine", default="?", help="its name there")
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                      HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    import_all()
    lines = []
    with tempfile.TemporaryDirectory() as work:
        if arguments.model == "25m":
            BASE = make_model_in(Path(work) / "model", RANDOM)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(DATA / "base" / name, BASE)
        for setting in drawn(arguments.count):
            folder = Path(work) / str(setting["sequence_length"])
            if not folder.exists():
                folder.mkdir()
                forked(write_rows, folder, setting["sequence_length"])
            here = ours_trained(os.path.abspath(arguments.binary), setting, folder, arguments.tokens)
            there = {**forked(trl_trained, setting, folder, arguments.tokens), **forked(trl_memory, setting, folder)}
            measured = {f"{side}_{name}": found[name] for side, found in (("ours", here), ("trl", there)) for name in METRICS}
            lines.append({"model": arguments.model, **setting, **measured})
            print({key: round(value, 4) if isinstance(value, float) else value for key, value in lines[-1].items()}, flush=True)
    for name, unit in METRICS.items():
        rank = spearman([(line[f"ours_{name}"], line[f"trl_{name}"]) for line in lines])
        print(f"{name:8} ({unit}): Spearman {rank:.3f} over {len(lines)} settings")
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            out = csv.DictWriter(file, ["machine", "date", "command", *lines[0]], lineterminator="\n")
            out.writeheader()
            for line in lines:
                short = {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in line.items()}
                out.writerow({"machine": arguments.machine, "date": datetime.date.today(),
                              "command": "scripts/measure/rank_with_trl.py", **short})


if __name__ == "__main__":
    main()
