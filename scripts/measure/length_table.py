#!/usr/bin/env python3
"""Makes a table of trainings of a small model at several lengths, by which the model of loss over length is judged.

    scripts/measure/length_table.py target/release/peft-tune NAME TABLE.csv [--minutes 25] [--keep FOLDER]

NAME is a model with its data of `tables.py`. Ranks, global batches, optimizers and learning rates are trained for 30 thousand
tokens and 3, 10 and 30 times as long: each length is a training of its own with its whole cosine schedule. Rates are trained
together, as a study; the rows of a study are added to TABLE when it ends, and studies that are in it are not repeated, so that
it may be stopped at any time and goes on where it was. --minutes ends it after the study under way. Losses do not depend on
what else runs. One thread takes about two minutes for the four lengths of a setting at six rates.
"""

import argparse
import csv
import pathlib
import tempfile
import time

from tables import TABLES, prepare, searched, space

TOKENS = 30_000
TIMES = [1, 3, 10, 30]
RATES = [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]
# Lion's rates are a fifth of AdamW's.
RATES_OF = {"adamw": RATES, "lion": [rate / 5 for rate in RATES]}
# Rank, global batch, optimizer: the most used first.
GROUPS = [(32, 8, "adamw"), (8, 32, "adamw"), (8, 8, "adamw"), (32, 32, "adamw"), (32, 8, "lion"), (8, 32, "lion")]
SETTING = ["rank", "global_batch", "optimizer", "learning_rate"]
MEASURED = ["loss", "loss_standard_error", "loss_before"]
COLUMNS = [*SETTING, "tokens", *MEASURED]


def studies():
    """Groups with their lengths, in the order of their use: all lengths of a group before the next one."""
    return [(*group, times * TOKENS) for group in GROUPS for times in TIMES]


def trained(program, folder, rank, batch, optimizer, tokens):
    """Trains all rates of a group for so many tokens: rows of the table. A training that diverged has none."""
    setting = {"rank": rank, "global_batch": batch, "optimizer": optimizer}
    varied = {"learning_rate": RATES_OF[optimizer], "target_modules": "all-linear"}
    study = space(folder, {**setting, **varied}, ["loss"])
    study["trial"]["training_tokens"] = tokens
    name = f"{rank}-{batch}-{optimizer}-{tokens}"
    found = searched(program, folder, name, study, MEASURED)
    rows = sorted(found, key=lambda row: float(row["learning_rate"]))
    return [{**row, **setting, "tokens": tokens} for row in rows]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", type=pathlib.Path)
    arguments.add_argument("name", choices=[name for name, _, _ in TABLES])
    arguments.add_argument("table", type=pathlib.Path)
    arguments.add_argument("--minutes", type=float, default=float("inf"))
    arguments.add_argument("--keep", type=pathlib.Path, help="folder for the model, data and databases")
    given = arguments.parse_args()
    ends = time.monotonic() + 60 * given.minutes
    known = set()
    if given.table.exists():
        with open(given.table) as rows:
            known = {tuple(row[key] for key in ["rank", "global_batch", "optimizer", "tokens"]) for row in csv.DictReader(rows)}
    else:
        given.table.parent.mkdir(parents=True, exist_ok=True)
        given.table.write_text(",".join(COLUMNS) + "\n")
    wanted = [study for study in studies() if tuple(map(str, study)) not in known]
    print(f"{len(wanted)} studies are to be made, {len(known)} are in {given.table}", flush=True)
    folder = given.keep or pathlib.Path(tempfile.mkdtemp())
    _, layers, reverse = next(table for table in TABLES if table[0] == given.name)
    prepare(folder, layers, reverse)
    for study in wanted:
        if time.monotonic() > ends:
            break
        began = time.monotonic()
        rows = trained(given.program, folder, *study)
        with open(given.table, "a", newline="") as out:
            csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n").writerows(rows)
        print(f"{study}: {len(rows)} trainings in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
