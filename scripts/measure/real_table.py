#!/usr/bin/env python3
"""Makes a table of trainings of a pretrained model on real chats, each at several lengths.

    scripts/measure/real_table.py PROGRAM MODEL TRAIN.jsonl HELD_OUT.jsonl TABLE.csv [--minutes 60]

TRAIN and HELD_OUT have rows of `question` and `answer` (or of `messages`). Two ranks, two sets of target modules, two global
batches and five learning rates are trained for 10, 25, 50 and 100 thousand tokens: each length is a training of its own with
its whole cosine schedule. Six settings are trained with two more seeds, and six for 400 thousand. The held-out loss is that of
the same 256 rows each time. A line is added to TABLE after each training, and trainings that are in it are not repeated, so
that it may be stopped at any time and goes on where it was; --minutes ends it after the training under way. SmolLM2-135M on two
cores with AVX-512 takes about 8 minutes a setting. Losses do not depend on what else runs, the column of seconds does.
"""

import argparse
import csv
import itertools
import json
import pathlib
import subprocess
import tempfile
import time

SETTING = ["rank", "target_modules", "global_batch", "learning_rate"]
COLUMNS = [*SETTING, "seed", "tokens"]
MEASURED = ["steps", "trained_tokens", "loss", "token_accuracy", "target_tokens", "training_s"]
RATES = [0.001, 0.002, 0.004, 0.0005, 0.00025]
LENGTHS = [10_000, 25_000, 100_000, 50_000]
# Rank, target modules, global batch: the most used first.
GROUPS = [
    (32, "all-linear", 16),
    (32, "all-linear", 4),
    (8, "attention", 16),
    (8, "all-linear", 16),
    (32, "attention", 16),
    (8, "attention", 4),
    (8, "all-linear", 4),
    (32, "attention", 4),
]
MICRO_BATCH = 4
EVALUATION_ROWS = 256


def trainings():
    """Settings with their seeds and lengths, in the order of their use."""
    for group in GROUPS:
        yield from ((*group, rate, 0, tokens) for tokens, rate in itertools.product(LENGTHS, RATES))
    repeated = list(itertools.product(GROUPS[:2], RATES[:3]))
    for tokens, seed in [(100_000, 1), (100_000, 2), (400_000, 0)]:
        yield from ((*group, rate, seed, tokens) for group, rate in repeated)


def chats(source, target):
    """Writes rows as chats."""
    with open(target, "w") as out:
        for line in open(source):
            row = json.loads(line)
            if "messages" not in row:
                said = [("user", row["question"]), ("assistant", row["answer"])]
                row = {"messages": [{"role": role, "content": content} for role, content in said]}
            out.write(json.dumps(row) + "\n")


def recipe(model, folder, rank, targets, batch, rate, seed, tokens):
    return {
        "model": str(model),
        "data": {"train": str(folder / "train.jsonl"), "held_out": str(folder / "held_out.jsonl")},
        "adapter": {"rank": rank, "alpha": 2 * rank, "target_modules": targets},
        "precision": "bf16",
        # Nothing is cut: the longest row has 570 tokens.
        "batch": {
            "micro_batch": MICRO_BATCH,
            "gradient_accumulation": batch // MICRO_BATCH,
            "sequence_length": 576,
            "packing": False,
        },
        "optimizer": {"kind": "adamw", "learning_rate": rate},
        "schedule": {"kind": "cosine", "warmup": 0.03},
        "training": {"length": {"tokens": tokens}, "evaluation_rows": EVALUATION_ROWS, "seed": seed},
    }


def trained(program, folder, recipe):
    """Runs a training; what its last events say, by column."""
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(recipe))
    command = [program, "train", file, "--output", folder / "out", "--force", "--json", "--checkpoint-every", "1000000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    events = {}
    for line in done.stdout.splitlines():
        event = json.loads(line)
        events[event["event"]] = event
    end, evaluation = events["end"], events.get("evaluation", {})
    return {
        "steps": end["steps"],
        "trained_tokens": end["tokens"],
        "loss": end.get("held_out_loss"),
        "token_accuracy": evaluation.get("held_out_accuracy"),
        "target_tokens": evaluation.get("target_tokens"),
        "training_s": round(end["seconds"] - end.get("evaluation_s", 0), 1),
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["program", "model", "train", "held_out", "table"]:
        arguments.add_argument(name, type=pathlib.Path)
    arguments.add_argument("--minutes", type=float, default=float("inf"))
    given = arguments.parse_args()
    ends = time.monotonic() + 60 * given.minutes
    known = set()
    if given.table.exists():
        for row in csv.DictReader(open(given.table)):
            known.add(tuple(row[column] for column in COLUMNS))
    else:
        given.table.write_text(",".join(COLUMNS + MEASURED) + "\n")
    wanted = [one for one in trainings() if tuple(map(str, one)) not in known]
    print(f"{len(wanted)} trainings are to be made, {len(known)} are in {given.table}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        chats(given.train, folder / "train.jsonl")
        chats(given.held_out, folder / "held_out.jsonl")
        for one in wanted:
            if time.monotonic() > ends:
                break
            row = {**dict(zip(COLUMNS, one)), **trained(given.program, folder, recipe(given.model.resolve(), folder, *one))}
            with open(given.table, "a", newline="") as out:
                csv.DictWriter(out, COLUMNS + MEASURED, lineterminator="\n").writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
