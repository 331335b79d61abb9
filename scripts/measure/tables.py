#!/usr/bin/env python3
"""Makes the exhaustive tables that searches are judged by: every setting of a small space, trained by the engine.

    scripts/measure/tables.py target/release/peft-tune benches/race/tables [--only NAME]

Two models (the quickstart's, and the same without its last two layers) and two data sets (the quickstart's, and the same
with question and answer changed over). A loss is trained once for each loss key and a cost measured once for each cost
key, which is what the program does by itself: `search` with the sampler `grid`. Stop other work first: the throughputs
are measured. Takes about 5 minutes a table on two cores.
"""

import argparse
import collections
import csv
import json
import pathlib
import shutil
import sqlite3
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "search_spaces" / "quickstart"
# What changes the loss, the cost, or both.
LOSS = {"learning_rate": [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]}
COST = {"micro_batch": [2, 8], "gradient_checkpointing": ["none", "full"]}
BOTH = {
    "rank": [2, 8, 32],
    "target_modules": ["attention", "mlp", "all-linear"],
    "global_batch": [8, 32],
    "optimizer": ["adamw", "lion"],
}
# Name, layers, and whether question and answer are changed over.
TABLES = [("oskel-4", 4, False), ("oskel-2", 2, False), ("english-4", 4, True), ("english-2", 2, True)]


def shortened(source, target, layers):
    """Copies a model directory, with its first layers alone."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = layers
    (target / "config.json").write_text(json.dumps(config))
    content = (source / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    kept, blob = {}, b""
    for name, entry in header.items():
        parts = name.split(".")
        if name == "__metadata__" or ("layers" in parts and int(parts[parts.index("layers") + 1]) >= layers):
            continue
        start, end = entry["data_offsets"]
        kept[name] = {**entry, "data_offsets": [len(blob), len(blob) + end - start]}
        blob += data[start:end]
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + blob)


def changed_over(source, target):
    """The rows with question and answer changed over."""
    with open(target, "w") as out:
        for line in open(source):
            user, assistant = (message["content"] for message in json.loads(line)["messages"])
            task, text = user.split(": ", 1)
            messages = [{"role": "user", "content": f"{task}: {assistant}"}, {"role": "assistant", "content": text}]
            out.write(json.dumps({"messages": messages}) + "\n")


def prepare(folder, layers, reverse):
    """Puts a table's model and data into a folder, where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        shortened(QUICKSTART / "base", folder / "model", layers)
        for rows in ("train.jsonl", "held_out.jsonl"):
            (changed_over if reverse else shutil.copy)(QUICKSTART / rows, folder / rows)


def space(folder, searched, objectives):
    fixed = {"alpha_ratio": 2, "precision": "bf16", "warmup": 0.1}
    return {
        "study": "table",
        "model": str(folder / "model"),
        "data": {"train": str(folder / "train.jsonl"), "held_out": str(folder / "held_out.jsonl")},
        "objectives": objectives,
        "space": {**{"micro_batch": 8, "learning_rate": 0.001}, **searched, **fixed},
        "trial": {
            "sequence_length": 128,
            "profile_steps": 20,
            "profile_warmup": 3,
            "training_tokens": 30000,
            "evaluation": {"times": 1},
        },
        "sampler": "grid",
        "budget": {"trials": 100000},
        "pruner": "none",
        "confirm": "none",
        "seed": 1,
    }


def searched(program, folder, name, space, columns):
    """Runs a search and returns its complete trials: the columns by name. Trainings that diverge are left out."""
    (folder / f"{name}.yaml").write_text(json.dumps(space))
    database = folder / f"{name}.db"
    subprocess.run([program, "search", folder / f"{name}.yaml", "--db", database], check=True, stdout=subprocess.DEVNULL)
    connection = sqlite3.connect(database)
    found = collections.defaultdict(dict)
    for trial, key, value in connection.execute("select trial, name, value from trial_param"):
        found[trial][key] = value
    for trial, key, value in connection.execute("select trial, name, value from trial_metric"):
        found[trial][key] = value
    for trial, key, value in connection.execute("select trial, metric, predicted from trial_prediction"):
        found[trial]["predicted_" + key] = value
    return [row for row in found.values() if all(column in row for column in columns)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", type=pathlib.Path)
    arguments.add_argument("output", type=pathlib.Path)
    arguments.add_argument("--only", help="names of tables, joined by commas")
    arguments.add_argument("--keep", type=pathlib.Path, help="folder for models, data and databases")
    given = arguments.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    kept = given.keep or pathlib.Path(tempfile.mkdtemp())
    for name, layers, reverse in TABLES:
        if given.only and name not in given.only.split(","):
            continue
        folder = kept / name
        prepare(folder, layers, reverse)
        of_loss, of_cost = ["loss", "loss_before"], ["throughput", "peak_memory"]
        predicted = ["predicted_throughput", "predicted_peak_memory"]
        losses = searched(given.program, folder, "loss", space(folder, {**BOTH, **LOSS}, ["loss"]), of_loss)
        costs = searched(given.program, folder, "cost", space(folder, {**BOTH, **COST}, of_cost), of_cost + predicted)
        columns = [*BOTH, *LOSS, *COST, *of_cost, *of_loss, *predicted]
        with open(given.output / f"{name}.csv", "w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(columns)
            count = 0
            for loss in losses:
                for cost in costs:
                    if all(loss[key] == cost[key] for key in BOTH):
                        row = {**cost, **loss, **{key: cost[key] for key in [*COST, *of_cost, *predicted]}}
                        writer.writerow([row[column] for column in columns])
                        count += 1
        print(f"{name}: {len(losses)} losses, {len(costs)} costs, {count} settings", flush=True)


if __name__ == "__main__":
    main()
