#!/usr/bin/env python3
"""Exports a whole study for Optuna, MLflow, TensorBoard and pandas' readers, opens it there, and compares the values.

    pip install optuna optuna-dashboard mlflow tensorboard pyarrow
    scripts/peers/studies_with_tools.py --binary target/release/peft-tune --db peft-tune.db [--study NAME]

What `--format csv` says of the trials is the reference. Prints a line a tool; exits with 1 if one shows something else. A
tool that is not installed is passed over with a line that says so. Checked with optuna 5.0.0, optuna-dashboard 0.21.0,
mlflow 3.17.2, tensorboard 2.20.0 and pyarrow.
"""

import argparse
import csv
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
METRICS = ("throughput", "peak_memory", "loss")


class Different(Exception):
    pass


def same(what, theirs, ours):
    if theirs != ours and not (theirs is not None and ours is not None and abs(theirs - ours) <= 1e-6 * abs(ours)):
        raise Different(f"{what}: {theirs} there, {ours} here")


def export(options, kind, folder):
    command = [options.binary, "export", "--format", kind, "--db", options.db, "--output", str(folder)]
    subprocess.run(command + (["--study", options.study] if options.study else []), check=True, capture_output=True)
    return folder


def reference(folder):
    """Trials by number, with their metrics; None where one is not known."""
    with open(folder / "trials.csv", newline="") as file:
        rows = {int(row["trial"]): row for row in csv.DictReader(file)}
    number = lambda text: float(text) if text else None
    return {
        trial: {"state": row["state"], **{name: number(row[f"metric.{name}"]) for name in METRICS}}
        for trial, row in rows.items()
    }


def check_optuna(folder, trials):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{folder}/optuna.db"
    name = optuna.get_all_study_names(storage)[0]
    study = optuna.load_study(study_name=name, storage=storage)
    same("trials", len(study.trials), len(trials))
    labels = study.metric_names
    for trial in study.trials:
        ours = trials[trial.user_attrs.get("trial", trial.number)]
        if trial.state == optuna.trial.TrialState.COMPLETE:
            for label, value in zip(labels, trial.values):
                same(f"trial {trial.number} {label}", value, ours[label])
    importances = optuna.importance.get_param_importances(study, target=lambda trial: trial.values[0])
    return f"{len(study.trials)} trials of {labels}, front of {len(study.best_trials)}, {len(importances)} importances"


def check_dashboard(folder, trials):
    """The pages' own interface: studies, and the trials of the first one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()",
               f"sqlite:///{folder}/optuna.db", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def get(path):
            for _ in range(120):
                try:
                    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10))
                except OSError:
                    time.sleep(0.25)
            raise Different(f"no answer to {path}")

        studies = get("/api/studies")["study_summaries"]
        detail = get(f"/api/studies/{studies[0]['study_id']}")
        same("trials", len(detail["trials"]), len(trials))
        return f"study {studies[0]['study_name']} with {len(detail['trials'])} trials"
    finally:
        server.terminate()
        server.wait()


def check_mlflow(folder, trials):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(str(folder))
    experiment = client.search_experiments()[0]
    runs = client.search_runs([experiment.experiment_id], max_results=50000)
    same("runs", len(runs), len(trials))
    points = 0
    for run in runs:
        ours = trials[int(run.info.run_name.split()[-1])]
        for name in METRICS:
            same(f"{run.info.run_name} {name}", run.data.metrics.get(name), ours[name])
        points += len(client.get_metric_history(run.info.run_id, "learning_rate"))
    return f"{len(runs)} runs in {experiment.name}, {points} points of learning rates"


def check_tensorboard(folder, trials):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directories = sorted(path for path in folder.iterdir() if path.is_dir())
    same("directories", len(directories), len(trials))
    scalars = 0
    for directory in directories:
        events = EventAccumulator(str(directory))
        events.Reload()
        scalars += sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"])
    return f"{len(directories)} runs, {scalars} scalars"


def check_pyarrow(folder, trials):
    import pyarrow.parquet as parquet

    rows = parquet.read_table(folder / "trials.parquet").to_pylist()
    same("rows", len(rows), len(trials))
    for row in rows:
        for name in METRICS:
            same(f"trial {row['trial']} {name}", row[f"metric.{name}"], trials[row["trial"]][name])
    return f"{len(rows)} rows"


CHECKS = {
    "optuna": ("optuna", check_optuna),
    "optuna_dashboard": ("optuna", check_dashboard),
    "mlflow": ("mlflow", check_mlflow),
    "tensorboard": ("tensorboard", check_tensorboard),
    "pyarrow": ("parquet", check_pyarrow),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--db", required=True)
    parser.add_argument("--study")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        trials = reference(export(options, "csv", work / "csv"))
        for tool, (kind, check) in CHECKS.items():
            if importlib.util.find_spec(tool) is None:
                print(f"{tool}: not installed, passed over")
                continue
            folder = work / tool
            try:
                print(f"{tool}: agrees, {check(export(options, kind, folder), trials)}")
            except Exception as error:
                print(f"{tool}: DIFFERS, {type(error).__name__}: {error}")
                failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
