#!/usr/bin/env python3
"""Measures what a search costs around its trials: coordinator, workers' idle time, memory, warm and cold starts.

    cargo build --release && scripts/measure/workers.py [--long]

Needs only Python's standard library. Trials are made up (PEFT_TUNE_MOCK, seconds each) except for the warm start, which
runs the quickstart's model. With --long the memory run has 10,000 trials instead of 2,000.
"""
import argparse
import os
import re
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPACE = """
study: measured
model: {assets}/base
data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}
space:
  rank: [2, 4, 8, 16]
  learning_rate: {{low: 1e-4, high: 1e-1, scale: log}}
  precision: fp32
trial: {{sequence_length: 64, profile_steps: 1, training_steps: {steps}, evaluation: {{rows: 4}}}}
sampler: random
pruner: none
confirm: none
"""


class Search:
    """One search in a folder of its own."""

    def __init__(self, binary, mock, arguments, steps=4):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        assets = ROOT / "search_spaces/quickstart"
        (self.path / "space.yaml").write_text(SPACE.format(assets=assets, steps=steps))
        self.env = dict(os.environ, PEFT_TUNE_CACHE=str(self.path / "cache"), PEFT_TUNE_DB=str(self.path / "study.db"))
        if mock is not None:
            self.env["PEFT_TUNE_MOCK"] = str(mock)
        self.command = [str(binary), "search", "space.yaml", "--json", *arguments]
        # The data are tokenised and the machine is measured before, once.
        warm = [str(binary), "search", "space.yaml", "--json", "--trials", "1", *arguments]
        subprocess.run(warm, cwd=self.path, env=self.env, check=True, capture_output=True)

    def run(self, trials, sample_every=None):
        """Runs up to so many trials; returns seconds and resident MiB of the coordinator by finished trials."""
        samples = []
        began = time.monotonic()
        process = subprocess.Popen(
            self.command + ["--trials", str(trials)],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            time.sleep(sample_every or 0.05)
            if sample_every:
                samples.append((self.finished(), resident_mib(process.pid)))
        if process.returncode != 0:
            raise SystemExit(f"the search ended with code {process.returncode}")
        return time.monotonic() - began, [sample for sample in samples if sample[1]]

    def finished(self):
        return self.rows("select count(*) from trial where state = 'complete'")[0][0]

    def rows(self, sql):
        with sqlite3.connect(f"file:{self.path}/study.db?mode=ro", uri=True) as database:
            return database.execute(sql).fetchall()


def resident_mib(process):
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found.group(1)) / 1024 if found else None


SPAN = """
select 86400 * (max(julianday(ended_at)) - min(julianday(started_at))), sum(wall_s), count(*)
from trial where number > 0
"""


def overhead(binary):
    search = Search(binary, 0, ["--workers", "8"])
    search.run(501)
    span, _, trials = search.rows(SPAN)[0]
    print(f"coordinator: {1000 * span / trials:.2f} ms a trial ({trials} empty trials on 8 workers, sampler included)")


def busy(binary, seconds):
    # Where profile phases have the machine to themselves, the others wait on purpose.
    for how in ("shared", "alone"):
        search = Search(binary, seconds, ["--workers", "8", "--measure", how])
        search.run(161)
        span, work, trials = search.rows(SPAN)[0]
        print(f"busy: {100 * work / (8 * span):.1f}% of 8 workers over {trials} trials of {seconds} s, --measure {how}")


def memory(binary, trials):
    search = Search(binary, 0, ["--workers", "8"])
    seconds, samples = search.run(trials, sample_every=0.5)
    shown = [samples[int(share * (len(samples) - 1))] for share in (0.1, 0.25, 0.5, 0.75, 1.0)]
    text = ", ".join(f"{mib:.0f} MiB at {count}" for count, mib in shown)
    # The first trials fill the database's cache and the allocator's arenas.
    late = [sample for sample in samples if sample[0] >= 0.2 * trials]
    slope = statistics.linear_regression(*zip(*late)).slope
    print(f"memory of the coordinator: {text} trials; {trials} trials in {seconds:.0f} s; ", end="")
    print(f"{slope * 2**20:.0f} bytes a trial from trial {late[0][0]} on")


def starts(binary):
    search = Search(binary, None, [], steps=1)
    search.run(16)
    rows = search.rows(
        "select value from metric join trial on trial.id = trial_id where name = 'load_s' order by trial.number"
    )
    loads = [1000 * value for (value,) in rows]
    # The first trial of each of both searches had a fresh process.
    cold, warm = [loads[0], loads[1]], loads[2:]
    print(f"start of a trial: cold {max(cold):.0f} ms, warm {statistics.median(warm):.1f} ms (median of {len(warm)}, ", end="")
    print(f"most {max(warm):.1f} ms); a fresh process takes {process_ms(binary):.0f} ms more until it greets")


def process_ms(binary):
    """Milliseconds from the start of a worker to its first line."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        worker = subprocess.Popen([str(binary), "worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        worker.stdout.readline()
        times.append(1000 * (time.monotonic() - began))
        worker.stdin.close()
        worker.wait()
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/peft-tune")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", choices=["overhead", "busy", "memory", "starts"])
    arguments = parser.parse_args()
    binary = arguments.binary.resolve()
    parts = {
        "overhead": lambda: overhead(binary),
        "busy": lambda: [busy(binary, seconds) for seconds in (0.25, 1.0)],
        "memory": lambda: memory(binary, 10_000 if arguments.long else 2_000),
        "starts": lambda: starts(binary),
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            part()


main()
