#!/usr/bin/env python3
"""Does what a short training chooses hold at full length? Trains settings short, 3, 10 and 50 times as long, and compares.

    scripts/measure/length.py target/release/peft-tune FOLDER [--only NAME] [--lengths 1,3,10]    # trains, hours
    scripts/measure/length.py --table FOLDER docs/benchmarks/length.csv                           # compares
    scripts/measure/length.py --search target/release/peft-tune FOLDER                            # searches, minutes

24 settings (two ranks, six learning rates, two global batches) of two models on two data sets, those of `tables.py`. Each
length is a study of its own, which `search` resumes where it was stopped. `--search` lets searches choose among the
settings, as a user would who trains 10 times as long, and looks up in the table what their choice is worth there.
"""

import argparse
import collections
import csv
import datetime
import json
import pathlib
import sqlite3
import subprocess

from tables import TABLES, prepare

TOKENS = 30000
RATES = [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]
SEARCHED = {"rank": [8, 32], "global_batch": [8, 32], "learning_rate": RATES}
# Times the tokens of the short training, and the schedule.
COURSES = [(1, "cosine"), (1, "wsd"), (3, "cosine"), (3, "wsd"), (10, "cosine"), (50, "cosine")]
NAMES = ["oskel-4", "english-2"]


def name_of(times, schedule):
    return f"{schedule}-{times}"


def space(folder, times, schedule):
    return {
        "study": name_of(times, schedule),
        "model": str(folder / "model"),
        "data": {"train": str(folder / "train.jsonl"), "held_out": str(folder / "held_out.jsonl")},
        "objectives": ["loss"],
        "space": {
            **SEARCHED,
            "target_modules": "all-linear",
            "alpha_ratio": 2,
            "micro_batch": 8,
            "precision": "bf16",
            "warmup": 0.1,
            "schedule": schedule,
        },
        "trial": {"sequence_length": 128, "training_tokens": TOKENS * times, "evaluation": {"times": 10}},
        "sampler": "grid",
        "budget": {"trials": 100000},
        "pruner": "none",
        "confirm": "none",
        "seed": 1,
    }


def train(program, output, names, lengths):
    for times, schedule in COURSES:
        for name, layers, reverse in TABLES:
            if name not in names or times not in lengths:
                continue
            folder = output / name
            prepare(folder, layers, reverse)
            file = folder / f"{name_of(times, schedule)}.yaml"
            file.write_text(json.dumps(space(folder, times, schedule)))
            command = [program, "search", file, "--db", folder / "length.db"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"{name}: {name_of(times, schedule)}", flush=True)


def searches(program, output, names, seeds, times):
    """Searches that know that the training will be so many times as long; the regret of what they recommend, at that length."""
    long = collections.defaultdict(dict)
    for row in csv.DictReader(open(pathlib.Path(__file__).resolve().parents[2] / "docs/benchmarks/length.csv")):
        if row["tokens"] == str(times * TOKENS):
            long[row["data"]][tuple(float(row[key]) for key in SEARCHED)] = float(row["loss"])
    for name, layers, reverse in TABLES:
        if name not in names:
            continue
        folder = output / name
        prepare(folder, layers, reverse)
        for seed in range(1, seeds + 1):
            study = space(folder, 1, "cosine")
            study.update(
                study=f"search-{times}-{seed}",
                training={"length": {"tokens": times * TOKENS}, "seed": 1},
                objectives=["loss", "throughput", "peak_memory"],
                sampler="bayes",
                budget={"trials": 20},
                seed=seed,
            )
            del study["confirm"]
            file = folder / f"search-{times}-{seed}.yaml"
            file.write_text(json.dumps(study))
            command = [program, "search", file, "--db", folder / "search.db", "--json"]
            said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            trial = said["recommendation"]["trial"]
            connection = sqlite3.connect(folder / "search.db")
            query = "select name, value from trial_param where study = ? and trial = ?"
            params = {key: value for key, value in connection.execute(query, (study["study"], trial))}
            chosen = tuple(float(params[key]) for key in SEARCHED)
            best = min(long[name].values())
            found = long[name].get(chosen)
            regret = "not in the table" if found is None else f"regret {100 * (found / best - 1):.1f}%"
            print(f"{name}: seed {seed} recommends {chosen}: {regret}", flush=True)


def losses(folder):
    """Losses by course and setting. A training that diverged has none."""
    connection = sqlite3.connect(folder / "length.db")
    settings = collections.defaultdict(dict)
    for study, trial, key, value in connection.execute("select study, trial, name, value from trial_param"):
        if key in SEARCHED:
            settings[study, trial][key] = float(value)
    found = collections.defaultdict(dict)
    rows = connection.execute("select study, trial, value from trial_metric where name = 'loss'")
    for study, trial, value in rows:
        found[study][tuple(settings[study, trial][key] for key in SEARCHED)] = value
    return found


def ranks(values):
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranked = [0.0] * len(values)
    for rank, index in enumerate(order):
        ranked[index] = rank
    return ranked


def spearman(a, b):
    a, b = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    spread = sum((x - mean) ** 2 for x in a)
    return sum((x - mean) * (y - mean) for x, y in zip(a, b)) / spread


def table(output, csv_file, machine):
    rows = []
    origin = [machine, datetime.date.today().isoformat(), "scripts/measure/length.py"]
    for name in NAMES:
        found = losses(output / name)
        for times, schedule in COURSES:
            course = found.get(name_of(times, schedule), {})
            for setting, loss in sorted(course.items()):
                rank, batch, rate = setting
                rows.append([*origin, name, times * TOKENS, schedule, int(rank), int(batch), rate, round(loss, 5)])
        for full in (10, 50):
            long = found.get(name_of(full, "cosine"), {})
            for times, schedule in COURSES:
                short = found.get(name_of(times, schedule), {})
                both = [setting for setting in long if setting in short]
                if times >= full or len(both) < 4:
                    continue
                winner = min(both, key=short.get)
                best = min(both, key=long.get)
                regret = long[winner] / long[best] - 1
                print(
                    f"{name}: {schedule} x{times} against x{full}: {len(both)} settings, "
                    f"Spearman {spearman([short[s] for s in both], [long[s] for s in both]):.2f}, "
                    f"regret {100 * regret:.1f}%, winner {winner}, best {best}"
                )
    with open(csv_file, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["machine", "date", "command", "data", "tokens", "schedule", *SEARCHED, "loss"])
        writer.writerows(rows)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", type=pathlib.Path, help="the program, or the folder with --table")
    arguments.add_argument("output", type=pathlib.Path)
    arguments.add_argument("--only", default=",".join(NAMES), help="names of data sets, joined by commas")
    arguments.add_argument("--lengths", default="1,3,10,50", help="times the short training, joined by commas")
    arguments.add_argument("--machine", default="A", help="the machine's letter in docs/benchmarks.md, for the table")
    arguments.add_argument("--table", action="store_true", help="compare what was trained")
    arguments.add_argument("--search", action="store_true", help="let searches choose among the settings")
    arguments.add_argument("--seeds", type=int, default=5, help="searches of each data set")
    arguments.add_argument("--times", type=int, default=10, help="how long the training is that they choose for")
    given = arguments.parse_args()
    if given.table:
        table(given.program, given.output, given.machine)
    elif given.search:
        searches(given.program, given.output, given.only.split(","), given.seeds, given.times)
    else:
        lengths = [int(times) for times in given.lengths.split(",")]
        train(given.program, given.output, given.only.split(","), lengths)


if __name__ == "__main__":
    main()
