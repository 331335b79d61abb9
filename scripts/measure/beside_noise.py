#!/usr/bin/env python3
"""Searches beside a program that takes all cores for a random third of the time, and measures the front again in peace.

    cargo build --release && scripts/measure/beside_noise.py [--binary target/release/peft-tune] [--trials 24] [--seed 0]

Needs only Python's standard library, and a machine that is otherwise quiet: it refuses to begin where the load is above 1.
The search runs the quickstart's model and data. It ends with 1 where fewer than 9 of 10 points of the front are within 10%, and
with 3, saying nothing about the search, where the machine by itself became faster or slower meanwhile: the same recipe is profiled
before the search, and around the profiles of the front.
"""
import argparse
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPACE = """
study: {name}
model: {assets}/base
data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}
space:
  rank: [4, 8, 16, 32]
  micro_batch: [1, 2, 4, 8]
  gradient_checkpointing: [none, full]
  learning_rate: {{low: 1e-4, high: 1e-2, scale: log}}
  global_batch: 8
trial: {{sequence_length: 128, training_tokens: 20000}}
confirm: none
budget: {{trials: {trials}}}
"""
# Bursts of the other program: seconds that they last in the mean, and their share of the time.
BURST_S = 4.0
SHARE = 1 / 3
WITHIN = 0.1
ENOUGH = 0.9
# What two profiles of one recipe may differ by; where they do, a third decides.
SAME = 0.05
RECIPE = """
model: {assets}/base
data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}
batch: {{micro_batch: 4, sequence_length: 128}}
"""


def spin(until):
    while time.time() < until:
        pass


def noise(seed, stop):
    """Takes all cores now and then."""
    dice = random.Random(seed)
    while not stop.is_set():
        until = time.time() + dice.expovariate(1 / BURST_S)
        spinners = [multiprocessing.Process(target=spin, args=(until,)) for _ in range(os.cpu_count())]
        for spinner in spinners:
            spinner.start()
        for spinner in spinners:
            spinner.join()
        stop.wait(dice.expovariate(SHARE / ((1 - SHARE) * BURST_S)))


def run(binary, folder, *arguments):
    environment = {**os.environ, "PEFT_TUNE_DB": str(folder / "study.db")}
    done = subprocess.run([binary, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arguments}: {done.stderr}")
    return done.stdout


def rows(folder, sql):
    with sqlite3.connect(f"file:{folder / 'study.db'}?mode=ro", uri=True) as database:
        return database.execute(sql).fetchall()


def profiled(binary, folder, recipe):
    """Tokens/s of a recipe."""
    run(binary, folder, "profile", str(recipe), "--budget", "10")
    return rows(folder, "select tokens_per_s from profile order by id desc limit 1")[0][0]


def recipe_of(binary, folder, trial):
    recipe = folder / f"recipe-{trial}"
    run(binary, folder, "export", "--format", "recipe", "--trial", str(trial), "--output", str(recipe), "--force")
    return next(recipe.glob("*.yaml")) if recipe.is_dir() else recipe


def in_peace(binary, folder, trials):
    """Tokens/s of trials' recipes by trial: to and fro, so that what changes slowly shows as a difference."""
    recipes = {trial: recipe_of(binary, folder, trial) for trial in trials}
    found = {trial: [] for trial in trials}
    for trial in [*trials, *reversed(trials)]:
        found[trial].append(profiled(binary, folder, recipes[trial]))
    for trial, values in found.items():
        if max(values) > (1 + SAME) * min(values):
            values.append(profiled(binary, folder, recipes[trial]))
    return {trial: statistics.median(values) for trial, values in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/peft-tune"))
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if os.getloadavg()[0] > 1:
        sys.exit(f"the load is {os.getloadavg()[0]:.1f}: stop other work first")
    binary = str(Path(args.binary).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = SPACE.format(name="noise", assets=ROOT / "search_spaces/quickstart", trials=args.trials)
        (folder / "space.yaml").write_text(text)
        reference = folder / "reference.yaml"
        reference.write_text(RECIPE.format(assets=ROOT / "search_spaces/quickstart"))
        speeds = [profiled(binary, folder, reference)]
        stop = multiprocessing.Event()
        other = multiprocessing.Process(target=noise, args=(args.seed, stop))
        other.start()
        try:
            print(run(binary, folder, "search", "space.yaml"))
        finally:
            stop.set()
            other.join()
        front = rows(folder, "select trial, throughput from pareto_front")
        marked = {trial for (trial,) in rows(folder, "select trial from disturbed_trial")}
        repeats = rows(folder, "select count(*) from (select distinct trial_id, attempt from measurement where attempt > 0)")
        right = 0
        speeds.append(profiled(binary, folder, reference))
        peaceful = in_peace(binary, folder, [trial for trial, _ in front])
        speeds.append(profiled(binary, folder, reference))
        for trial, throughput in front:
            quiet = peaceful[trial]
            off = throughput / quiet - 1
            right += abs(off) <= WITHIN
            mark = " disturbed" if trial in marked else ""
            print(f"trial {trial}: {throughput:.0f} beside noise, {quiet:.0f} in peace, {100 * off:+.1f}%{mark}")
        print(f"{right} of {len(front)} within {100 * WITHIN:.0f}%, {repeats[0][0]} repeats")
        changed = max(speeds) / min(speeds) - 1
        print(f"the machine's own speed: {', '.join(f'{speed:.0f}' for speed in speeds)} tokens/s")
        if changed > WITHIN:
            print(f"it changed by {100 * changed:.0f}%: this says nothing about the search")
            sys.exit(3)
        sys.exit(right < ENOUGH * len(front))


if __name__ == "__main__":
    main()
