#!/usr/bin/env python3
"""Does `watch` name what is wrong? Trainings in TRL on this CPU, clean ones and one for each fault, and what was named in each.

    scripts/measure/watch_faults.py --binary target/release/peft-tune --python PYTHON [--clean N] [--faults A,B] [--limit SECONDS]
        [--longest SECONDS] [--work DIR] [--json FILE]

PYTHON has torch, transformers, peft, trl and datasets. Prints a table of the faults (its cause, named or not, other causes) and one
of the clean trainings (how many, how many with a false alarm, which causes): plain ones, some that evaluate, and some on one thread
beside a program that computes on another processor. Runs one training at a time, for a machine on which nothing else does. What
--limit leaves no time for is said, and so is what this machine cannot show. A clean training takes a third of a minute on two
cores, all of it twenty minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from watched_run import end_by_signals, run_whole  # noqa: E402

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
    "one_other_program": ["other_programs"],
    "few_processors": ["cpu_limit"],
    "accumulation": ["other_setting"],
}
#: Causes for which no fault is made, and why.
LEFT_OUT = {
    "data_preparation": "needs a GPU that waits",
    "swapping": "needs a machine with swap that may be filled",
    "throttled": "needs heat, or a limit of power",
    "memory_limit": "needs a control group whose memory may be limited",
    "another precision": "is not seen, unless the tool prints it",
}
#: Clean trainings, which differ in what is no fault, by their options.
CLEAN = {"plain": [], "evaluates": ["--evaluates"], "beside another": ["--threads", "1"]}
#: Settings that the tool does not keep to: it accumulates half as many micro-batches.
SETTINGS = {
    "model_name_or_path": str(MODEL), "use_peft": True, "lora_r": 8, "lora_target_modules": "all-linear", "max_length": 192,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "bf16": False, "gradient_checkpointing": False,
    "learning_rate": 1e-4,
}


def written_bytes():
    """Bytes that this process has written to disks; `None` where the kernel does not tell."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), None)


def processors():
    """Processors that this program may use, and the trainings with it."""
    return len(os.sched_getaffinity(0))


def cannot_show(work):
    """Faults and clean trainings that the watch cannot see on this machine, with the reason."""
    reasons, before = {}, written_bytes()
    if processors() < 2:
        reasons["beside another"] = "there is no other processor"
    if not Path("/proc/self/schedstat").exists():
        for fault in ("other_programs", "one_other_program"):
            reasons[fault] = "the kernel does not count how long threads wait for a processor"
    if processors() < 3:
        reasons["few_processors"] = f"one of {processors()} processors is not less than half of them"
    with tempfile.TemporaryFile(dir=work) as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    if before is None:
        reasons["saving"] = "the kernel does not count what processes write"
    elif written_bytes() - before < 1 << 20:
        reasons["saving"] = f"{work} is on no disk; name another folder by --work"
    return reasons


def busy_loops(fault, more):
    """Programs that compute beside a training."""
    if fault == "other_programs":
        return processors()
    return int(fault == "one_other_program" or "--threads" in more)


def watched(args, name, fault, end, more=()):
    """The report of one training; `None` where there is none."""
    out = args.work / name
    (out / "run").mkdir(parents=True, exist_ok=True)
    report = out / "report.json"
    report.unlink(missing_ok=True)
    options = ["--every", "0.25", "--report", str(report)]
    if fault == "accumulation":
        settings = out / "settings.yaml"
        settings.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in SETTINGS.items()))
        options += ["--config", str(settings), "--stack", "trl"]
    training = ["--model", str(MODEL), "--out", str(out / "run"), "--fault", fault, *more]
    beside = busy_loops(fault, more)
    if beside and fault != "none":
        # All processors are wanted, also where PyTorch leaves some of them free.
        training += ["--threads", str(processors())]
    words = [args.binary, "watch", *options, "--", args.python, str(HERE / "watched_training.py"), *training]
    if fault == "few_processors":
        # The watch too: what the run may use is what the watch may.
        words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *words]
    loop = f"import time\nend = time.time() + {args.longest}\nwhile time.time() < end: pass"
    loops = []
    try:
        loops += [subprocess.Popen([args.python, "-c", loop]) for _ in range(beside)]
        run_whole(words, out / "output.txt", out, min(args.longest, end - time.monotonic()))
    finally:
        for process in loops:
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
    # Links are left alone: by them a Python knows its environment.
    parser.add_argument("--python", required=True, type=os.path.abspath)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds for all trainings")
    parser.add_argument("--longest", type=float, default=300.0, help="seconds after which a training counts as hung")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    asked = [fault for fault in args.faults.split(",") if fault]
    unknown = [fault for fault in asked if fault not in FAULTS]
    if unknown:
        sys.exit(f"no such faults: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    end_by_signals()
    args.work = (args.work or Path(tempfile.mkdtemp(prefix="watch-faults-"))).resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    end, left, rows, clean = time.monotonic() + args.limit, [], [], []
    unseen = {name: reason for name, reason in cannot_show(args.work).items() if name in asked or name in CLEAN}
    for fault in asked:
        if fault in unseen:
            continue
        report = watched(args, fault, fault, end) if time.monotonic() < end else None
        if report is None and time.monotonic() >= end:
            left.append(fault)
            continue
        if report is None or not ended_well(report, fault):
            rows.append((fault, None, [], args.work / fault / "output.txt"))
        else:
            found = causes(report)
            named = any(cause in found for cause in FAULTS[fault])
            rows.append((fault, named, [cause for cause in found if cause not in FAULTS[fault]], None))
        print(f"{fault}: {rows[-1][1:]}", file=sys.stderr, flush=True)
    kinds = [kind for kind in CLEAN if kind not in unseen]
    for number in range(args.clean):
        kind = kinds[number % len(kinds)]
        # So many that their course counts.
        more = ["--seed", str(number), "--steps", "30", *CLEAN[kind]]
        report = watched(args, f"clean-{number}", "none", end, more) if time.monotonic() < end else None
        if report is None and time.monotonic() >= end:
            left.append(f"{args.clean - number} clean trainings")
            break
        failed = report is None or not ended_well(report, "none")
        clean.append((kind, None if failed else causes(report)))
        print(f"clean {number}: {clean[-1]}", file=sys.stderr, flush=True)
    table(rows, left, {**unseen, **LEFT_OUT})
    clean_table(clean)
    if args.json:
        faults = [{"fault": fault, "named": named, "others": others} for fault, named, others, _ in rows]
        alarms = [{"training": kind, "causes": found} for kind, found in clean]
        args.json.write_text(json.dumps({"faults": faults, "clean": alarms, "left": left, "unseen": unseen}, indent=2) + "\n")


def table(rows, left, not_tried):
    """Prints what was named."""
    print("| fault | cause | named | other causes |\n|---|---|---|---|")
    for fault, named, others, output in rows:
        told = {True: "yes", False: "no", None: f"failed: {output}"}[named]
        print(f"| {fault} | `{FAULTS[fault][0]}` | {told} | {', '.join(others)} |")
    print(f"\n{sum(1 for row in rows if row[1])} of {len(rows)} faults named")
    for name in left:
        print(f"no time was left for {name}")
    for name, reason in not_tried.items():
        print(f"not tried: {name}: {reason}")


def clean_table(clean):
    """Prints the false alarms: each cause that was named in a training without a fault."""
    print("\n| clean training | runs | with a false alarm | causes |\n|---|---:|---:|---|")
    for kind in CLEAN:
        ran = [found for one, found in clean if one == kind and found is not None]
        alarmed = [found for found in ran if found]
        print(f"| {kind} | {len(ran)} | {len(alarmed)} | {'; '.join(', '.join(found) for found in alarmed)} |")
    ran = [found for _, found in clean if found is not None]
    print(f"\nfalse alarms in {sum(1 for found in ran if found)} of {len(ran)} clean trainings")
    if len(ran) < len(clean):
        print(f"{len(clean) - len(ran)} clean trainings failed")


if __name__ == "__main__":
    main()
