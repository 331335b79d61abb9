"""How many trials and seconds each sampler needs on a table of a real grid.

    peft-tune search benches/race/grid.yaml --db grid.db      measures the grid with the engine
    python3 benches/race/grid.py table grid.db > grid.csv     makes a table of it: settings, metrics, seconds of both phases
    python3 benches/race/grid.py race grid.csv                has every sampler search the table through the command backend
    python3 benches/race/grid.py trial grid.csv               one trial of such a search: looks its setting up

The race counts the seconds of the trainings that a search would have run; a loss that another trial has shown costs none.
A setting's throughput and memory follow from its cost key and its loss from its loss key, so the table is whole as soon as
every key was measured once; settings whose keys were not are left out. Standard library only.
"""
import argparse
import csv
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from race import hypervolume

SPACE = {
    "rank": [2, 8, 32],
    "target_modules": ["attention", "all-linear"],
    "learning_rate": [1e-3, 3e-3, 1e-2, 3e-2],
    "micro_batch": [2, 8],
    "global_batch": [8, 32],
    "precision": ["fp32", "bf16"],
    "gradient_checkpointing": ["none", "full"],
}
# What decides each metric: see "What a parameter can change" in docs/space-file.md.
COST = [name for name in SPACE if name != "learning_rate"]
LOSS = [name for name in SPACE if name not in ("micro_batch", "gradient_checkpointing")]
MEASURED = ["throughput", "peak_memory", "loss"]


def table(database):
    """Writes the table: one line a setting whose keys were measured."""
    connection = sqlite3.connect(database)
    params, metrics, inherited = {}, {}, {}
    for trial, name, value in connection.execute("select trial, name, value from trial_param"):
        params.setdefault(trial, {})[name] = value
    for trial, name, value in connection.execute("select trial, name, value from trial_metric"):
        metrics.setdefault(trial, {})[name] = value
    for trial, part in connection.execute("select trial, part from trial_inherited"):
        inherited.setdefault(trial, set()).add(part)
    text = lambda value: f"{float(value):g}" if str(value).replace(".", "").replace("e-", "").isdigit() else str(value)
    key = lambda setting, names: tuple(text(setting[name]) for name in names)
    costs, losses = {}, {}
    for trial, measured in metrics.items():
        if all(name in measured for name in MEASURED):
            costs.setdefault(key(params[trial], COST), measured)
            losses.setdefault(key(params[trial], LOSS), measured)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*SPACE, *MEASURED, "loss_before", "train_s"])
    for values in product(*SPACE.values()):
        setting = dict(zip(SPACE, values))
        cost, loss = costs.get(key(setting, COST)), losses.get(key(setting, LOSS))
        if cost and loss:
            seconds = loss.get("train_tokens", 0) / cost["throughput"]
            writer.writerow([*values, f"{cost['throughput']:.1f}", int(cost["peak_memory"]), f"{loss['loss']:.5f}", f"{loss['loss_before']:.5f}", f"{seconds:.3f}"])


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[name] for name in SPACE): row for row in rows}


def trial(path):
    params = json.load(sys.stdin)["params"]
    number = lambda value: f"{value:g}" if isinstance(value, (int, float)) else value
    rows = {tuple(number(float(v)) if v.replace(".", "").isdigit() else v for v in key): row for key, row in read(path).items()}
    row = rows.get(tuple(number(params[name]) for name in SPACE))
    if row is None:
        print(json.dumps({"outcome": "crashed"}))
        return
    print(json.dumps({"metrics": {name: float(row[name]) for name in [*MEASURED, "train_s"]}}))


def affects(name):
    return ["throughput", "peak_memory"] * (name in COST) + ["loss"] * (name in LOSS)


def race(path, options):
    rows = list(read(path).values())
    point = lambda row: [-float(row["throughput"]), float(row["peak_memory"]), float(row["loss"])]
    points = [point(row) for row in rows]
    reference = [max(values) + 0.1 * (max(values) - min(values)) for values in zip(*points)]
    # As the search itself would have it: what learns less than three quarters of what the best one learns counts nothing.
    reference[2] = 0.25 * float(rows[0]["loss_before"]) + 0.75 * min(point[2] for point in points)
    whole = hypervolume(points, reference)
    print(f"{len(rows)} settings, reference {reference}, hypervolume {whole:.6g}")
    objectives = [{"metric": "throughput", "direction": "maximize", "reference": -reference[0]}]
    objectives += [{"metric": name, "reference": value} for name, value in zip(MEASURED[1:], reference[1:])]
    for sampler in options.samplers.split(","):
        counts, seconds = [], []
        for seed in range(options.seeds):
            study = {
                "study": f"grid-{seed}", "seed": seed, "sampler": sampler, "objectives": objectives, "budget": {"trials": options.trials},
                "space": {name: {"choices": values, "affects": affects(name)} for name, values in SPACE.items()},
                "backend": {"command": [sys.executable, str(Path(__file__).resolve()), "trial", str(Path(path).resolve())]},
            }
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "space.yaml").write_text(json.dumps(study))
                command = [options.binary, "search", f"{folder}/space.yaml", "--json", "--db", f"{folder}/study.db"]
                subprocess.run(command, check=True, capture_output=True)
                found, connection = {}, sqlite3.connect(f"{folder}/study.db")
                for number, name, value in connection.execute("select trial, name, value from trial_metric"):
                    found.setdefault(number, {})[name] = value
                taken_over = {number for number, part in connection.execute("select trial, part from trial_inherited") if part == "loss"}
            points, spent, count = [], 0.0, None
            for count, number in enumerate(sorted(found), 1):
                points.append(point(found[number]))
                spent += 0.0 if number in taken_over else found[number].get("train_s", 0.0)
                if hypervolume(points, reference) >= 0.95 * whole:
                    break
            else:
                count = None
            counts.append(count)
            seconds.append(spent)
        reached = [count for count in counts if count]
        mean = f"{sum(reached) / len(reached):.0f}" if reached else "-"
        print(f"{sampler:<7} trials to 95%: {mean} ({' '.join(str(count) for count in counts)}), training {sum(seconds) / len(seconds):.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "trial", "race"])
    parser.add_argument("file")
    parser.add_argument("--binary", default=os.environ.get("PEFT_TUNE", "target/release/peft-tune"))
    parser.add_argument("--samplers", default="bayes,tpe,nsga2,sobol,random,grid")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    if options.what == "race":
        race(options.file, options)
    else:
        {"table": table, "trial": trial}[options.what](options.file)


if __name__ == "__main__":
    main()
