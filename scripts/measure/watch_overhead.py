#!/usr/bin/env python3
"""What does `watch` cost? The same training in TRL on this CPU with it and without it, in pairs.

    scripts/measure/watch_overhead.py --binary target/release/peft-tune --python PYTHON [--pairs N] [--steps N] [--limit SECONDS]
        [--work DIR] [--json FILE]

Each training tells the seconds of its steps; of two in a pair, every second pair the other way round, the ratio of the medians
counts. Prints each pair, the median of the ratios and its interval of 95% by resampling. For a machine on which nothing else runs.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from watched_run import end_by_signals, run_whole  # noqa: E402

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "search_spaces" / "quickstart" / "base"
#: Seconds after which a training counts as hung.
LONGEST_S = 600.0


def step_s(args, name, is_watched):
    """Median seconds of a step."""
    out = args.work / name
    (out / "run").mkdir(parents=True, exist_ok=True)
    command = [args.python, str(HERE / "watched_training.py"), "--model", str(MODEL), "--out", str(out / "run"),
               "--steps", str(args.steps)]
    if is_watched:
        command = [args.binary, "watch", "--report", str(out / "report.json"), "--", *command]
    code = run_whole(command, out / "output.txt", out, LONGEST_S)
    if code != 0:
        why = f"took longer than {LONGEST_S:.0f} s" if code is None else f"ended with {code}"
        sys.exit(f"a training {why}; its output is {out / 'output.txt'}")
    return statistics.median(json.loads((out / "run" / "steps.json").read_text()))


def interval(ratios, seed=0):
    """Bounds of 95% of the median, by resampling."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[-101]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune", type=lambda path: str(Path(path).resolve()))
    # Links are left alone: by them a Python knows its environment.
    parser.add_argument("--python", required=True, type=os.path.abspath)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--limit", type=float, default=840.0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_by_signals()
    args.work = (args.work or Path(tempfile.mkdtemp(prefix="watch-overhead-"))).resolve()
    end, ratios = time.monotonic() + args.limit, []
    for pair in range(args.pairs):
        if time.monotonic() > end:
            print(f"no time was left for {args.pairs - pair} pairs")
            break
        order = [True, False] if pair % 2 else [False, True]
        times = {is_watched: step_s(args, f"{pair}-{is_watched}", is_watched) for is_watched in order}
        ratios.append(times[True] / times[False])
        print(f"pair {pair}: {times[False]:.4f} s without, {times[True]:.4f} s with: {100 * (ratios[-1] - 1):+.2f}%", flush=True)
    if len(ratios) < 2:
        sys.exit("too few pairs for an interval; give a longer --limit")
    low, high = interval(ratios)
    middle = statistics.median(ratios)
    print(f"a step takes {100 * (middle - 1):+.2f}% longer with `watch` ({100 * (low - 1):+.2f}% to {100 * (high - 1):+.2f}%, "
          f"{len(ratios)} pairs)")
    if args.json:
        args.json.write_text(json.dumps({"ratios": ratios, "median": middle, "interval": [low, high]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
