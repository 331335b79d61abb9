#!/usr/bin/env python3
"""What it costs to bring a study with many trials to each tracker: seconds, memory and bytes, at two sizes.

    cargo build --release && scripts/measure/trackers.py [--binary target/release/peft-tune] [--trials 1250,5000]

Searches the quickstart for a few trials, and multiplies them in the database: each copy has a learning rate, 8 profiled steps, 40
training steps and 2 evaluations of its own. `peft-tune track` then brings the study to a tracker that has nothing of it, and once
more to one that has all of it. A server is one of MLflow itself, where that is installed (`pip install mlflow`). `growth` is the
exponent of the seconds in the number of trials: 1 is linear.
"""

import argparse
import importlib.util
import math
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

SEARCHED = 3
STEPS = {"profile": 8, "train": 40}
PLACES = {"tensorboard": "tensorboard={}/runs", "mlflow (files)": "mlflow={}/mlruns", "optuna": "optuna={}/optuna.db",
          "wandb": "wandb={}/offline", "trackio": "trackio={}/trackio"}


def study_of(binary, folder):
    """A results database with a few trials."""
    environment = {**os.environ, "PEFT_TUNE_DB": str(folder / "few.db")}
    command = [binary, "quickstart", "--output", str(folder / "quickstart"), "--trials", str(SEARCHED), "--time", "1h"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return folder / "few.db"


def columns(connection, table):
    """Those that are written, in order."""
    return [row[1] for row in connection.execute(f"pragma table_xinfo({table})") if row[6] == 0]


def multiply(few, path, trials):
    """The same study with so many trials, each with steps and evaluations of its own."""
    with sqlite3.connect(few) as source, sqlite3.connect(path) as target:
        source.backup(target)
    connection = sqlite3.connect(path)
    draw = random.Random(0)
    (originals,) = zip(*connection.execute("select id from trial where state = 'complete' order by number"))
    last, number = connection.execute("select max(id), max(number) from trial").fetchone()
    names = {table: columns(connection, table) for table in ("trial", "param", "metric")}
    first = last + 1
    for new in range(first, first + trials - (number + 1)):
        number += 1
        old = originals[number % len(originals)]
        rate = math.exp(draw.uniform(math.log(1e-3), math.log(3e-2)))
        replaced = {"trial": {"id": new, "number": number}, "param": {"trial_id": new}, "metric": {"trial_id": new}}
        for table, changes in replaced.items():
            key = "id" if table == "trial" else "trial_id"
            values = ", ".join(str(changes.get(name, f'"{name}"')) for name in names[table])
            listed = ", ".join(f'"{name}"' for name in names[table])
            connection.execute(f"insert into {table} ({listed}) select {values} from {table} where {key} = ?", (old,))
        connection.execute("update param set json = ?, value = ? where trial_id = ? and name = 'learning_rate'",
                           (repr(rate), rate, new))
    for (trial,) in connection.execute("select id from trial").fetchall():
        connection.execute("delete from step where trial_id = ?", (trial,))
        connection.execute("delete from evaluation where trial_id = ?", (trial,))
        for phase, steps in STEPS.items():
            rows = [(trial, phase, step, 4 / step**0.2 + draw.random() / 10, 1e-3, 0.5, 2048, 1500, 1e-4, 0.01, 0.02, 0.001, 0.03)
                    for step in range(1, steps + 1)]
            connection.executemany("insert into step values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        rows = [(trial, step, step * 2048, 3.0 - step / 100, 0.4, 9000, 0.1) for step in (20, 40)]
        connection.executemany("insert into evaluation values (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


def timed(command, environment):
    """Seconds, and the most MiB that were resident."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {status}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime


def bytes_below(folder):
    """As the file system has them, in blocks."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def measure(options, work, trials):
    path = work / f"{trials}.db"
    multiply(work / "few.db", path, trials)
    print(f"{trials} trials, database {path.stat().st_size / 2**20:.0f} MiB", flush=True)
    environment = {**os.environ, "PEFT_TUNE_DB": str(path)}
    seconds = {}
    for name, place in PLACES.items():
        if options.only and name.split()[0] not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [options.binary, "track", "--to", place.format(folder)]
            whole, memory_mib, cpu_s = timed(command, environment)
            again, _, _ = timed(command, environment)
            size = bytes_below(pathlib.Path(folder)) / 2**20
        seconds[name] = whole
        print(f"  {name}: {whole:.1f} s ({cpu_s:.1f} s of CPU), again {again:.1f} s, {memory_mib:.0f} MiB resident, "
              f"{size:.0f} MiB written", flush=True)
    if importlib.util.find_spec("mlflow") and (not options.only or "server" in options.only):
        from trackers_with_tools import MlflowServer

        server = MlflowServer(work / f"server-{trials}")
        command = [options.binary, "track", "--to", f"mlflow={server.address}"]
        try:
            whole, memory_mib, cpu_s = timed(command, environment)
            again, _, _ = timed(command, environment)
        finally:
            server.stop()
        seconds["mlflow (server)"] = whole
        print(f"  mlflow (server): {whole:.1f} s ({cpu_s:.1f} s of CPU), again {again:.1f} s, {memory_mib:.0f} MiB resident",
              flush=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune")
    parser.add_argument("--trials", default="1250,5000", help="two sizes of the study")
    parser.add_argument("--only", action="append", help="a tracker, or `server` for MLflow's")
    parser.add_argument("--keep", help="folder that keeps the databases")
    options = parser.parse_args()
    options.binary = str(pathlib.Path(options.binary).resolve())
    small, large = (int(size) for size in options.trials.split(","))
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(options.keep or work)
        study_of(options.binary, work)
        before, after = measure(options, work, small), measure(options, work, large)
    for name, seconds in after.items():
        print(f"{name}: growth {math.log(seconds / before[name]) / math.log(large / small):.2f}")


if __name__ == "__main__":
    main()
