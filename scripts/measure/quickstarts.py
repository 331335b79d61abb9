#!/usr/bin/env python3
"""Searches the quickstart with several seeds, alone or beside busy loops, and judges what each recommends.

    scripts/measure/quickstarts.py target/release/peft-tune FOLDER [--seeds 10] [--first-seed 11] [--busy 0] [--cpus 0,1]

A line a search: the seconds it took, its trials, what it recommends, how fast that is beside the baseline of the same search,
whether another trial that was measured alike is at least as good in throughput, peak memory and loss and clearly better in one
(by 5%, as costs are measured to some percent), and its loss beside the best known. A search's own losses depend on its seed, by some
percent: so what each recommends is trained anew with five seeds that are the same for all, and so is the trial of least loss where
that is another one; the means are compared. FOLDER keeps databases and losses: a search that is there is judged again and not
repeated. --busy starts so many loops that do nothing but compute; --cpus pins the search and the loops to processors.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import time

CLEARLY = 0.05
NEAR = 0.02
SEEDS = range(101, 106)


def busy(cpus):
    os.sched_setaffinity(0, cpus)
    while True:
        pass


def searched(program, folder, seed):
    """Searches with a seed in a folder of its own; the seconds it took, from the file that says so where it was done before."""
    seconds = folder / "seconds"
    if not seconds.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([program, "quickstart", "--output", folder, "--dry-run"], check=True, capture_output=True)
        study = folder / "quickstart.yaml"
        study.write_text(re.sub(r"(?m)^seed: \d+$", f"seed: {seed}", study.read_text()))
        began = time.monotonic()
        with open(folder / "screen.txt", "w") as screen:
            command = [program, "search", study, "--db", folder / "peft-tune.db"]
            subprocess.run(command, check=True, stdout=screen, stderr=subprocess.STDOUT)
        seconds.write_text(f"{time.monotonic() - began:.0f}\n")
    return float(seconds.read_text())


def read(program, folder, command):
    output = subprocess.run(
        [program, *command, "quickstart", "--db", folder / "peft-tune.db", "--json"], check=True, capture_output=True, text=True
    )
    return json.loads(output.stdout)


def longest(metrics):
    """Tokens of the longest training behind these metrics, 0 for the trial's own, and the loss after it."""
    if "loss_longer" in metrics:
        return metrics.get("longer_tokens"), metrics["loss_longer"]
    return 0, metrics.get("loss")


def is_dominated(one, other):
    """Whether another trial's metrics are at least as good in all of the three, and clearly better in one; losses of the same length
    are compared."""
    (tokens, loss), (other_tokens, other_loss) = longest(one), longest(other)
    if tokens != other_tokens or loss is None or other_loss is None:
        return False
    gains = [other["throughput"] / one["throughput"], one["peak_memory"] / other["peak_memory"], loss / other_loss]
    return all(gain >= 1.0 for gain in gains) and any(gain > 1.0 + CLEARLY for gain in gains[:2])


def trained_anew(program, folder, trial):
    """Mean held-out loss of a trial's setting over the common seeds."""
    place = folder / f"trial-{trial}"
    known = place / "losses.json"
    if not known.exists():
        shutil.rmtree(place, ignore_errors=True)
        export = ["export", "--study", "quickstart", "--trial", str(trial), "--format", "recipe", "--output", place]
        subprocess.run([program, *export, "--db", folder / "peft-tune.db"], check=True, capture_output=True)
        recipe, losses = (place / "recipe.yaml").read_text(), []
        for seed in SEEDS:
            again, count = re.subn(r"(?m)^  seed: \d+$", f"  seed: {seed}", recipe)
            assert count == 1, "one seed"
            (place / "again.yaml").write_text(again)
            command = [program, "train", place / "again.yaml", "--output", place / "adapter", "--force", "--json"]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            losses.append(json.loads(told.splitlines()[-1])["held_out_loss"])
        shutil.rmtree(place / "adapter")
        known.write_text(json.dumps(losses))
    return statistics.fmean(json.loads(known.read_text()))


def judged(program, folder, seed, seconds):
    explained, shown = (read(program, folder, [command]) for command in ("explain", "show"))
    found = explained["recommendation"]
    complete = [one for one in shown["trials"] if one["state"]["state"] == "complete"]
    metrics = {one["number"]: one["state"]["metrics"] for one in complete}
    own = {**metrics[found["trial"]], **found["metrics"]}
    base = metrics.get(0, own)
    worse_than = [number for number, other in metrics.items() if number != found["trial"] and is_dominated(own, other)]
    recommended = found["trial"]
    losses = {number: one["loss"] for number, one in metrics.items() if one.get("loss") is not None}
    least = min(losses, key=losses.get)
    # Trials of one loss key have the same loss.
    least = recommended if losses[least] == losses[recommended] else least
    return {
        "seed": seed,
        "seconds": seconds,
        "trials": len(shown["trials"]),
        "trial": recommended,
        "params": found["params"],
        "speed": own["throughput"] / base["throughput"],
        "memory": own["peak_memory"] / base["peak_memory"],
        "dominated_by": worse_than,
        "loss": trained_anew(program, folder, recommended),
        "least": trained_anew(program, folder, least),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=11)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--cpus", help="numbers of processors, such as 0 or 0,1")
    arguments = parser.parse_args()
    cpus = os.sched_getaffinity(0)
    if arguments.cpus:
        cpus = {int(number) for number in arguments.cpus.split(",")}
        os.sched_setaffinity(0, cpus)
    loops = [multiprocessing.Process(target=busy, args=(cpus,), daemon=True) for _ in range(arguments.busy)]
    for loop in loops:
        loop.start()
    program = arguments.program.resolve()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folders, seconds = {}, {}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        folder = folders[seed] = arguments.folder / f"busy{arguments.busy}-cpus{len(cpus)}-seed{seed}"
        seconds[seed] = searched(program, folder, seed)
        print(f"seed {seed}: {seconds[seed]:.0f} s", flush=True)
    for loop in loops:
        loop.kill()
    found = [judged(program, folders[seed], seed, seconds[seed]) for seed in seconds]
    best = min(min(one["loss"], one["least"]) for one in found)
    print("\n| seed | s | trials | recommended | precision | speed | memory | loss | above the best known | dominated by |")
    print("|--:|--:|--:|--:|---|--:|--:|--:|--:|---|")
    for one in found:
        above = one["loss"] / best - 1.0
        worse = ", ".join(map(str, one["dominated_by"])) or "none"
        print(
            f"| {one['seed']} | {one['seconds']:.0f} | {one['trials']} | {one['trial']} | {one['params'].get('precision')} "
            f"| {one['speed']:.2f} | {one['memory']:.2f} | {one['loss']:.4f} | {100 * above:.1f}% | {worse} |"
        )
    near = sum(one["loss"] / best - 1.0 <= NEAR for one in found)
    full = sum(one["params"].get("precision") == "fp32" for one in found)
    dominated = sum(bool(one["dominated_by"]) for one in found)
    print(f"\nof {len(found)}: {near} within {100 * NEAR:.0f}% of the best loss known, {full} in fp32, {dominated} dominated")


if __name__ == "__main__":
    main()
