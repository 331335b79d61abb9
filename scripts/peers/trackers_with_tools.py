#!/usr/bin/env python3
"""Searches with trackers, reads what they have with their own packages, and compares that with the database.

    pip install tensorboard mlflow optuna optuna-dashboard wandb trackio
    scripts/peers/trackers_with_tools.py --binary target/release/peft-tune [--only tensorboard]

Searches the quickstart in a folder that goes afterwards, twice: the second search resumes the first with more trials. What
`export --format csv` says is the reference. Prints a line a tracker; exits with 1 if one has something else. A package that
is not installed is passed over with a line that says so. `wandb sync` sends the runs to a stand-in of its server. Checked with tensorboard 2.21.0, mlflow 3.17.2, optuna 5.0.0, optuna-dashboard 0.21.0, wandb 0.31.0, trackio 0.43.0.
"""

import argparse
import csv
import importlib.util
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import wsgiref.util
import zlib

import wandb_server

METRICS = ("throughput", "peak_memory", "loss")


class Different(Exception):
    pass


def same(what, theirs, ours, tolerance=1e-9):
    if theirs != ours and not (theirs is not None and ours is not None and abs(theirs - ours) <= tolerance * abs(ours)):
        raise Different(f"{what}: {theirs} there, {ours} here")


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Reference:
    """What the database says: trials with their metrics, and losses of training steps."""

    def __init__(self, folder):
        number = lambda text: float(text) if text else None
        self.trials, self.losses, self.recommended = {}, {}, None
        for row in rows(folder / "trials.csv"):
            metrics = {name: number(row[f"metric.{name}"]) for name in METRICS}
            if row["recommended"]:
                self.recommended = int(row["trial"])
            self.trials[int(row["trial"])] = {"state": row["state"], "rank": number(row["param.rank"]), **metrics}
        for row in rows(folder / "steps.csv"):
            if row["phase"] == "train":
                self.losses.setdefault(int(row["trial"]), []).append(number(row["loss"]))
        self.held_out = {}
        for row in rows(folder / "evaluations.csv"):
            self.held_out.setdefault(int(row["trial"]), []).append(number(row["loss"]))


def check_tensorboard(place, reference):
    """Scalars by EventAccumulator, and the table as the HParams plugin makes it of the same files."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    folders = sorted(path for path in place.glob("*/*") if path.is_dir())
    same("runs", len(folders), len(reference.trials))
    points = 0
    for folder in folders:
        events = EventAccumulator(str(folder))
        events.Reload()
        trial, known = int(folder.name.split("-")[-1]), events.Tags()["scalars"]
        values = lambda tag: [event.value for event in events.Scalars(tag)] if tag in known else []
        for tag, ours in (("train/loss", reference.losses), ("held_out/loss", reference.held_out)):
            same(f"values of {folder.name} {tag}", len(values(tag)), len(ours.get(trial, [])))
            for theirs, one in zip(values(tag), ours.get(trial, [])):
                same(f"{folder.name} {tag}", theirs, one, 1e-6)
        for name in METRICS:
            same(f"{folder.name} {name}", ([None] + values(f"metric/{name}"))[-1], reference.trials[trial][name], 1e-6)
        points += len(values("train/loss"))
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(place))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(place))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=1000, allowed_statuses=[0, 1, 2, 3])
    asked = RequestContext()
    experiment = context.experiment_from_metadata(
        asked, "", True, context.hparams_metadata(asked, ""), context.hparams_from_data_provider(asked, "", 100)
    )
    for column in experiment.metric_infos:
        request.col_params.add(metric=column.name)
    table = list_session_groups.Handler(asked, context, "", request).run()
    same("rows of the table", table.total_size, len(reference.trials))
    for group in table.session_groups:
        trial = int(group.sessions[0].name.split("-")[-1])
        same(f"rank of {trial}", group.hparams["rank"].number_value, reference.trials[trial]["rank"])
        marks = [value.value for value in group.metric_values if value.name.tag == "recommended"]
        same(f"mark of {trial}", marks[-1] if marks else 0.0, float(trial == reference.recommended))
        for value in group.metric_values:
            if value.name.tag == "recommended":
                continue
            same(f"{value.name.tag} of {trial}", value.value, reference.trials[trial][value.name.tag.split("/")[1]], 1e-6)
    return f"{len(folders)} runs, {points} steps, {table.total_size} rows of {len(experiment.hparam_infos)} params"


def check_mlflow_runs(client, reference, experiment="quickstart"):
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id], max_results=50000)
    same("runs", len(runs), len(reference.trials))
    points, recommended = 0, 0
    for run in runs:
        trial = int(run.info.run_name.split()[-1])
        ours = reference.trials[trial]
        same(f"rank of {trial}", float(run.data.params["rank"]), ours["rank"])
        for name in METRICS:
            same(f"{name} of {trial}", run.data.metrics.get(name), ours[name])
        for key, values in (("train_loss", reference.losses), ("held_out_loss", reference.held_out)):
            history = [one.value for one in client.get_metric_history(run.info.run_id, key)]
            same(f"values of {key} of {trial}", len(history), len(values.get(trial, [])))
            for theirs, one in zip(history, values.get(trial, [])):
                same(f"{key} of {trial}", theirs, one)
            points += len(history)
        recommended += "recommended" in run.data.tags
        same(f"mark of {trial}", "recommended" in run.data.tags, trial == reference.recommended)
        if ours["state"] == "complete":
            same(f"status of {trial} is FINISHED", float(run.info.status == "FINISHED"), 1.0)
    same("recommended runs", recommended, 1)
    return f"{len(runs)} runs, {points} values"


def check_mlflow_files(place, reference):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    return check_mlflow_runs(MlflowClient(str(place)), reference)


class MlflowServer:
    """A server of MLflow itself with a database, on a free port."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
                   "--artifacts-destination", str(folder / "artifacts"), "--port", self.address.split(":")[-1], "--workers", "1"]
        folder.mkdir()
        log = open(folder / "log", "w")
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.address + "/health", timeout=5)
                return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError((folder / "log").read_text())

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def check_mlflow_server(address, reference):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(address)
    said = check_mlflow_runs(client, reference)
    run = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])[0]
    same("artifacts", len(client.list_artifacts(run.info.run_id)), 1)
    return said


def check_optuna(place, reference):
    """The storage by Optuna, and the pages' own interface of optuna-dashboard."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{place}"
    study = optuna.load_study(study_name="quickstart", storage=storage)
    same("trials", len(study.trials), len(reference.trials))
    for trial in study.trials:
        ours = reference.trials[trial.number]
        same(f"rank of {trial.number}", float(trial.params["rank"]), ours["rank"])
        same(f"mark of {trial.number}", "recommended" in trial.user_attrs, trial.number == reference.recommended)
        if trial.state == optuna.trial.TrialState.COMPLETE:
            for label, value in zip(study.metric_names, trial.values):
                same(f"{label} of {trial.number}", value, ours[label])
        same(f"values of {trial.number}", len(trial.intermediate_values), len(reference.held_out.get(trial.number, [])))
    said = f"{len(study.trials)} trials, front of {len(study.best_trials)}"
    if importlib.util.find_spec("optuna_dashboard") is None:
        return said
    from optuna_dashboard import wsgi
    from optuna.storages import RDBStorage

    answers = []
    application = wsgi(RDBStorage(storage))

    def page(path):
        environment = {}
        wsgiref.util.setup_testing_defaults(environment)
        environment["PATH_INFO"] = path
        body = b"".join(application(environment, lambda status, headers, *rest: answers.append(status)))
        return json.loads(body)

    studies = page("/api/studies")["study_summaries"]
    same("trials of the dashboard", len(page(f"/api/studies/{studies[0]['study_id']}")["trials"]), len(reference.trials))
    return f"{said}; optuna-dashboard answers {answers[-1]}"


def wandb_records(path):
    """The records of an offline run, by the classes of wandb itself; checksums are compared."""
    from wandb.proto import wandb_internal_pb2

    data, at, content, records = path.read_bytes(), 7, b"", []
    same("head", float(data[:7] == b":W&B\xe1\xbe\x00"), 1.0)
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        checksum, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        same(f"checksum at {at}", checksum, zlib.crc32(part, zlib.crc32(bytes([kind]))))
        at, content = at + 7 + length, content + part
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            records.append(record)
            content = b""
    return records


def check_wandb(place, reference):
    """Records by the classes of wandb itself."""
    files = sorted(place.glob("wandb/offline-run-*/run-*.wandb"))
    same("runs", len(files), len(reference.trials))
    points = 0
    for path in files:
        records = wandb_records(path)
        same("numbers", float([record.num for record in records] == list(range(1, len(records) + 1))), 1.0)
        run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
        trial = int(run.display_name.split()[-1])
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        same(f"rank of {trial}", float(config["rank"]), reference.trials[trial]["rank"])
        losses = [json.loads(item.value_json) for record in records for item in record.history.item
                  if list(item.nested_key) == ["train/loss"]]
        same(f"steps of {trial}", len(losses), len(reference.losses.get(trial, [])))
        for theirs, one in zip(losses, reference.losses.get(trial, [])):
            same(f"train/loss of {trial}", theirs, one)
        points += len(losses)
        summary = {item.key: json.loads(item.value_json) for record in records for item in record.summary.update}
        for name in METRICS:
            same(f"{name} of {trial}", summary.get(name), reference.trials[trial][name])
    return f"{len(files)} runs, {points} steps; {check_wandb_sync(place, reference)}"


def check_wandb_sync(place, reference):
    """What `wandb sync` sends of the folder, as its server gets it: config, history, summary, files and the end."""
    server = wandb_server.WandbServer()
    environment = {**os.environ, "WANDB_BASE_URL": server.address, "WANDB_API_KEY": "0" * 40, "HOME": str(place),
                   "WANDB_ERROR_REPORTING": "false"}
    for mark in place.glob("wandb/*/*.synced"):
        mark.unlink()
    folders = sorted(map(str, place.glob("wandb/offline-run-*")))
    command = [sys.executable, "-m", "wandb", "sync", *folders]
    # It leaves logs where it runs.
    synced = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True)
    server.stop()
    if synced.returncode or server.unknown:
        raise Different(f"wandb sync: {synced.returncode}, not understood: {server.unknown}; {synced.stderr[-1000:]}")
    same("runs at the server", len(server.runs), len(reference.trials))
    rows = 0
    for (project, name), run in server.runs.items():
        trial = int(run.display_name.split()[-1])
        ours = reference.trials[trial]
        if (project, run.group) != ("quickstart", "quickstart"):
            raise Different(f"trial {trial} is of project {project} and group {run.group}")
        same(f"tag of {trial} at the server", "recommended" in (getattr(run, "tags", None) or []), trial == reference.recommended)
        same(f"mark of {trial} at the server", "recommended" in run.summary, trial == reference.recommended)
        same(f"rank of {trial} at the server", float(run.config["rank"]["value"]), ours["rank"])
        for metric in METRICS:
            same(f"{metric} of {trial} at the server", run.summary.get(metric), ours[metric])
        for key, values in (("train/loss", reference.losses), ("held_out/loss", reference.held_out)):
            theirs = [row[key] for _, row in sorted(run.history.items()) if key in row]
            same(f"rows with {key} of {trial} at the server", len(theirs), len(values.get(trial, [])))
            for one, other in zip(theirs, values.get(trial, [])):
                same(f"{key} of {trial} at the server", one, other)
        same(f"exit code of {trial}", float(run.exit_code), float(ours["state"] == "failed"))
        same(f"recipes of {trial}", float("recipe.yaml" in run.files), 1.0)
        rows += len(run.history)
    return f"wandb sync sent {rows} rows"


def check_trackio(place, reference):
    """In a process of its own: trackio looks for its folder when it is imported."""
    script = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
runs = trackio.Api().runs("quickstart")
print(json.dumps([[run.name, run.config, SQLiteStorage.get_logs("quickstart", run.name, run_id=run.id)] for run in runs],
                 default=str))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(place)}
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    runs = json.loads(output.stdout.splitlines()[-1])
    same("runs", len(runs), len(reference.trials))
    points = 0
    for name, config, logs in runs:
        trial = int(name.split()[-1])
        same(f"rank of {trial}", float(config["rank"]), reference.trials[trial]["rank"])
        same(f"mark of {trial}", "recommended" in config, trial == reference.recommended)
        losses = [row["train/loss"] for row in logs if "train/loss" in row]
        same(f"steps of {trial}", len(losses), len(reference.losses.get(trial, [])))
        for theirs, one in zip(losses, reference.losses.get(trial, [])):
            same(f"train/loss of {trial}", theirs, one)
        points += len(losses)
        for metric in METRICS:
            values = [row[f"metric/{metric}"] for row in logs if f"metric/{metric}" in row]
            same(f"{metric} of {trial}", ([None] + values)[-1], reference.trials[trial][metric])
    return f"{len(runs)} runs, {points} steps"


# Tracker on the command line, package, what stands behind the `=` in the folder of the run, and the check.
CHECKS = {
    "tensorboard": ("tensorboard", "tensorboard", "runs", check_tensorboard),
    "mlflow-files": ("mlflow", "mlflow", "mlruns", check_mlflow_files),
    "mlflow-server": ("mlflow", "mlflow", None, check_mlflow_server),
    "optuna": ("optuna", "optuna", "optuna.db", check_optuna),
    "wandb": ("wandb", "wandb", "offline", check_wandb),
    "trackio": ("trackio", "trackio", "trackio", check_trackio),
}


def search(options, work, trials, places):
    environment = {**os.environ, "PEFT_TUNE_DB": str(work / "study.db")}
    command = [options.binary, "quickstart", "--output", str(work / "quickstart"), "--trials", str(trials)]
    for name, place in places.items():
        command += ["--track", f"{CHECKS[name][0]}={place}"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run([options.binary, "export", "--format", "csv", "--output", str(work / "csv"), "--force"],
                   check=True, env=environment, capture_output=True)
    return Reference(work / "csv")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--only", choices=sorted(CHECKS), action="append")
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    failed, server = False, None
    with tempfile.TemporaryDirectory() as work:
        work, places = pathlib.Path(work), {}
        for name in options.only or CHECKS:
            if importlib.util.find_spec(CHECKS[name][1]) is None:
                print(f"{name}: not installed, passed over")
                continue
            if name == "mlflow-server":
                server = MlflowServer(work / "server")
            places[name] = server.address if name == "mlflow-server" else work / CHECKS[name][2]
        try:
            for trials in (options.trials // 2, options.trials):
                reference = search(options, work, trials, places)
                for name, place in places.items():
                    try:
                        print(f"{name} after {trials} trials: agrees, {CHECKS[name][3](place, reference)}", flush=True)
                    except Exception as error:
                        print(f"{name} after {trials} trials: DIFFERS, {type(error).__name__}: {error}", flush=True)
                        failed = True
        finally:
            if server:
                server.stop()
    return failed


if __name__ == "__main__":
    sys.exit(main())
