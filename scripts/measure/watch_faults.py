#!/usr/bin/env python3
"""Does `watch` name what is wrong? Trainings in TRL on this CPU, clean ones and one for each fault, and what was named in each.

    scripts/measure/watch_faults.py --binary target/release/peft-tune --python PYTHON [--clean N] [--faults A,B] [--limit SECONDS]
        [--work DIR] [--json FILE]

PYTHON has torch, transformers, peft, trl and datasets. Prints a table (fault, its cause, named or not, other causes) and the
false alarms of the clean trainings. Runs one training at a time, for a machine on which nothing else does. What --limit leaves no
time for is said. A clean training takes a third of a minute on two cores, all of it a quarter of an hour.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "search_spaces" / "quickstart" / "base"
#: Faults with the causes of which one is to be named.
FAULTS = {
    "data_wait": ["data_wait"],
    "one_long_row": ["one_long_row"],
    "stall": ["stall"],
    "slows_down": ["slows_down"],
    "memory_grows": ["memory_grows"],
    "grows_with_lengths": ["memory_grows_with_lengths"],
    "evaluation_peak": ["evaluation_peak"],
    "evaluation_time": ["evaluation_time"],
    "saving": ["saving"],
    "out_of_memory": ["out_of_memory"],
    "fallback": ["fallback"],
    "other_programs": ["other_programs"],
    "few_processors": ["cpu_limit"],
}
#: Faults of which a machine need not be capable, and why they are left out.
LEFT_OUT = {
    "swapping": "needs a machine with swap that may be filled",
    "throttled": "needs heat, or a limit of power",
    "memory_limit": "needs a control group whose memory may be limited",
    "other_setting": "needs a settings file that the tool does not keep to; the tests have one",
}


def watched(args, name, fault, more=()):
    """The report of one training; `None` where there is none."""
    out = args.work / name
    out.mkdir(parents=True, exist_ok=True)
    report = out / "report.json"
    command = [str(args.python), str(HERE / "watched_training.py"), "--model", str(MODEL), "--out", str(out / "run"),
               "--fault", fault, *more]
    if fault == "few_processors":
        command = ["taskset", "-c", "0", *command]
    (out / "run").mkdir(exist_ok=True)
    beside = []
    if fault == "other_programs":
        loop = "import time\nend = time.time() + 600\nwhile time.time() < end: pass"
        beside = [subprocess.Popen([str(args.python), "-c", loop]) for _ in range(os.cpu_count() or 1)]
    try:
        with open(out / "output.txt", "wb") as output:
            words = [args.binary, "watch", "--every", "0.5", "--report", str(report), "--", *command]
            subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, cwd=out, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for process in beside:
            process.kill()
            process.wait()
    return json.loads(report.read_text()) if report.exists() else None


def causes(report):
    """Names of the causes in a report."""
    return [cause["name"] for cause in report["causes"]]


def ended_well(report, fault):
    """Whether a training went on to its end; one without memory does not."""
    return fault == "out_of_memory" or report["ending"]["exit_code"] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--python", required=True, type=Path)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--limit", type=float, default=870.0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    asked = [fault for fault in args.faults.split(",") if fault]
    unknown = [fault for fault in asked if fault not in FAULTS]
    if unknown:
        sys.exit(f"no such faults: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    args.work = (args.work or Path(tempfile.mkdtemp(prefix="watch-faults-"))).resolve()
    end, left, rows, clean = time.monotonic() + args.limit, [], [], []
    for fault in asked:
        if time.monotonic() > end:
            left.append(fault)
            continue
        report = watched(args, fault, fault)
        if report is None or not ended_well(report, fault):
            rows.append((fault, None, [], args.work / fault / "output.txt"))
        else:
            found = causes(report)
            named = any(cause in found for cause in FAULTS[fault])
            rows.append((fault, named, [cause for cause in found if cause not in FAULTS[fault]], None))
        print(f"{fault}: {rows[-1][1:]}", file=sys.stderr, flush=True)
    for number in range(args.clean):
        if time.monotonic() > end:
            left.append(f"{args.clean - number} clean trainings")
            break
        # Half of them evaluate, which is no fault.
        more = ["--seed", str(number), "--steps", "22", *(["--evaluates"] if number % 2 else [])]
        report = watched(args, f"clean-{number}", "none", more)
        failed = report is None or not ended_well(report, "none")
        clean.append(None if failed else causes(report))
        print(f"clean {number}: {clean[-1]}", file=sys.stderr, flush=True)
    table(rows, clean, left)
    if args.json:
        faults = [{"fault": fault, "named": named, "others": others} for fault, named, others, _ in rows]
        args.json.write_text(json.dumps({"faults": faults, "clean": clean, "left": left}, indent=2) + "\n")


def table(rows, clean, left):
    """Prints what was named."""
    print("| fault | cause | named | other causes |\n|---|---|---|---|")
    for fault, named, others, output in rows:
        told = {True: "yes", False: "no", None: f"failed: {output}"}[named]
        print(f"| {fault} | `{FAULTS[fault][0]}` | {told} | {', '.join(others)} |")
    ran = [found for found in clean if found is not None]
    alarmed = [found for found in ran if found]
    print(f"\n{sum(1 for row in rows if row[1])} of {len(rows)} faults named; {len(alarmed)} of {len(ran)} clean trainings with an alarm")
    for found in alarmed:
        print(f"  {', '.join(found)}")
    if len(ran) < len(clean):
        print(f"{len(clean) - len(ran)} clean trainings failed")
    for name in left:
        print(f"no time was left for {name}")
    for name, reason in LEFT_OUT.items():
        print(f"not tried: {name}: {reason}")


if __name__ == "__main__":
    main()
