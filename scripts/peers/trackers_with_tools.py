#!/usr/bin/env python3
"""Searches with trackers, reads what they have with their own packages, and compares that with the database.

    pip install tensorboard
    scripts/peers/trackers_with_tools.py --binary target/release/peft-tune [--only tensorboard]

Searches the quickstart in a folder that goes afterwards, twice: the second search resumes the first with more trials. What
`export --format csv` says is the reference. Prints a line a tracker; exits with 1 if one has something else. A package that
is not installed is passed over with a line that says so. Checked with tensorboard 2.21.0.
"""

import argparse
import csv
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

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
        self.trials, self.losses = {}, {}
        for row in rows(folder / "trials.csv"):
            metrics = {name: number(row[f"metric.{name}"]) for name in METRICS}
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
        for value in group.metric_values:
            same(f"{value.name.tag} of {trial}", value.value, reference.trials[trial][value.name.tag.split("/")[1]], 1e-6)
    return f"{len(folders)} runs, {points} steps, {table.total_size} rows of {len(experiment.hparam_infos)} params"


# Package, what stands behind the `=` in the folder of the run, and the check.
CHECKS = {
    "tensorboard": ("tensorboard", "runs", check_tensorboard),
}


def search(options, work, trials, trackers):
    environment = {**os.environ, "PEFT_TUNE_DB": str(work / "study.db")}
    command = [options.binary, "quickstart", "--output", str(work / "quickstart"), "--trials", str(trials)]
    for name in trackers:
        command += ["--track", f"{name}={work / CHECKS[name][1]}"]
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
    trackers = []
    for name in options.only or CHECKS:
        if importlib.util.find_spec(CHECKS[name][0]) is None:
            print(f"{name}: not installed, passed over")
        else:
            trackers.append(name)
    failed = False
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for trials in (options.trials // 2, options.trials):
            reference = search(options, work, trials, trackers)
            for name in trackers:
                _, place, check = CHECKS[name]
                try:
                    print(f"{name} after {trials} trials: agrees, {check(work / place, reference)}")
                except Exception as error:
                    print(f"{name} after {trials} trials: DIFFERS, {type(error).__name__}: {error}")
                    failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
