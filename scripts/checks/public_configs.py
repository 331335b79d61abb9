#!/usr/bin/env python3
"""Runs `init --from` and `plan --check` on every training config below a folder, and counts what they say.

    scripts/checks/public_configs.py FOLDER target/release/peft-tune
    scripts/checks/public_configs.py FOLDER PROGRAM --json all.json --top 40 --limit 10

Prints files by tool with the outcome of both commands, and the lines that are said of the most files: keys that no
setting is called by, what a study cannot express, what is guessed, and why files are refused. What a config names on the
hub is not fetched: a model and rows stand in for it, unless --model and --data name others. Exits with 1 where a run
crashed, hung, or refused a file without naming it or a key.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ENDINGS = {".yaml", ".yml", ".json", ".sh", ".py", ".ipynb"}
OUTCOMES = ["read", "refused by name", "tool not told", "refused without a name", "crash", "hang"]
FAULTS = OUTCOMES[3:]
KINDS = ["unknown keys", "not expressible", "guesses", "refusals"]

# Llama 3.1 8B.
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
ROW = {"instruction": "Say a word.", "input": "", "output": "Word."}

NOT_KNOWN = re.compile(
    r"^(?:passed over, as .+ knows no such keys: )?((?:`[^`]+`(?:, )?)+)(?:; check their| of .*: not known here)"
)
NO_TOOL = "no key that tells its tool"
OTHER_PROGRAM = re.compile(r"is a config of (.+?), which is not read")
GUESS = re.compile(r" (?:is|are) (?:taken|assumed)")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder of configs, at any depth")
    parser.add_argument("program", type=pathlib.Path, help="the peft-tune to run")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds after which a run hangs (20)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="files at a time")
    parser.add_argument("--device", default="A100 80GB", help="device that plans are for")
    parser.add_argument("--model", type=pathlib.Path, help="folder of the model that stands in")
    parser.add_argument("--data", type=pathlib.Path, help="file of the rows that stand in")
    parser.add_argument("--top", type=int, default=15, help="lines of each kind")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all that was said of each file")
    return parser.parse_args()


def configs(folder):
    """Paths of the files below a folder that may be configs, without hidden ones."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and path.suffix in ENDINGS and not is_hidden:
            yield path


def outcome(code, error, path):
    """What a run came to; `code` is None where it took longer than it may."""
    if code is None:
        return "hang"
    if code in (0, 7, 8):
        return "read"
    if code != 2:
        return "crash"
    if NO_TOOL in error:
        return "tool not told"
    return "refused by name" if path.name in error or "`" in error else "refused without a name"


def ran(command, path, args, folder):
    """A run's outcome, its code, what it printed, and what it said on its error stream, line by line."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "PEFT_TUNE_DB": str(folder / "none.db")}
    try:
        done = subprocess.run(
            [str(part) for part in [args.program.resolve(), *command]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=args.limit,
            cwd=folder,
            env=environment,
        )
        code, printed, said = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, printed, said = None, b"", late.stderr or b""
    said = said.decode(errors="replace")
    return {
        "outcome": outcome(code, said, path),
        "code": code,
        "lines": [line for line in said.splitlines() if line.strip()],
    }, printed.decode(errors="replace")


def plan_of(check, printed):
    """The plan that a run printed; one that cannot be read is a crash."""
    if check["outcome"] != "read":
        return {}
    try:
        return json.loads(printed)
    except ValueError:
        check["outcome"] = "crash"
        return {}


def tool_of(check, plan):
    """The tool that a plan was for, or the program that its refusal names."""
    if plan:
        return plan["stack"]
    named = OTHER_PROGRAM.search("\n".join(check["lines"]))
    return f"{named[1]} (not read)" if named else "none"


def looked_at(path, args, folder):
    """Both runs on one file."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        own = pathlib.Path(own)
        file = path.resolve()
        stand_ins = ["--model", args.model, "--data", args.data]
        init, _ = ran(
            ["init", "--from", file, *stand_ins, "--output", own / "study.yaml", "--memory", "80GiB"], path, args, own
        )
        check, printed = ran(
            ["plan", "--check", file, "--model", args.model, "--device", args.device, "--json"], path, args, own
        )
    plan = plan_of(check, printed)
    return {
        "file": str(path.relative_to(args.folder)),
        "tool": tool_of(check, plan),
        "verdict": (plan.get("verdict") or {}).get("fit"),
        "init": init,
        "check": check,
        "said": said_of(init, check, plan, file),
    }


def said_of(init, check, plan, file):
    """What was said of a file, each once: lists by kind."""
    said = {kind: set() for kind in KINDS}
    for command, run in (("init", init), ("check", check)):
        for line in run["lines"]:
            level, _, text = line.partition(": ")
            if level == "error":
                said["refusals"].add(alike(text, file))
            elif level == "warning" and (known := NOT_KNOWN.match(text)):
                said["unknown keys"].update(re.findall(r"`[^`]+`", known[1]))
            elif level == "warning":
                is_guess = command == "check" or GUESS.search(text)
                said["guesses" if is_guess else "not expressible"].add(alike(text, file))
    for of in ("tool", "rows"):
        if assumed := plan.get("assumed", {}).get(of):
            said["guesses"].add(alike(f"{of}: {assumed}", file))
    # A plan repeats what `init` says it cannot take over.
    said["guesses"] -= said["not expressible"]
    return {kind: sorted(lines) for kind, lines in said.items()}


def alike(text, file):
    """A line without what differs from file to file: paths, hub names, numbers outside of code."""
    text = text.replace(str(file), "FILE")
    text = re.sub(rf"(?<![\w.-]){re.escape(file.name)}", "FILE", text)
    text = re.sub(r"(?<=: )[^`,;]*/[^`,;]*(?=`)", "...", text)
    return re.sub(r"(?<![\w`.])\d+(?:\.\d+)?(?![\w`])", "N", text)


def table(rows):
    """Columns under each other, the first to the left and the others to the right."""
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        first, *others = (str(cell) for cell in row)
        print("  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))]).rstrip())


def report(files, top):
    by_tool = collections.defaultdict(list)
    for file in files:
        by_tool[file["tool"]].append(file)
    counted = lambda some, run: [sum(file[run]["outcome"] == one for file in some) for one in OUTCOMES]
    for run, command in (("init", "init --from"), ("check", "plan --check")):
        rows = [[command, "files", *OUTCOMES]]
        tools = sorted(by_tool.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        rows += [[tool, len(some), *counted(some, run)] for tool, some in tools]
        rows.append(["all", len(files), *counted(files, run)])
        table(rows)
        print()
    for kind in KINDS:
        lines = collections.Counter((file["tool"], line) for file in files for line in file["said"][kind])
        touched = sum(bool(file["said"][kind]) for file in files)
        print(f"{kind}: {len(lines)} in {touched} files")
        for (tool, line), count in sorted(lines.items(), key=lambda pair: (-pair[1], pair[0]))[:top]:
            print(f"  {count:5}  {tool}: {line}")
        print()
    for file in files:
        for run in ("init", "check"):
            if file[run]["outcome"] in FAULTS:
                last = file[run]["lines"][-1:] or [""]
                print(f"{file[run]['outcome']} (code {file[run]['code']}) in {run} of {file['file']}: {last[0]}")


def main():
    args = arguments()
    paths = list(configs(args.folder))
    if not paths:
        sys.exit(f"no files below {args.folder} end in {', '.join(sorted(ENDINGS))}")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if args.model is None:
            args.model = folder / "model"
            args.model.mkdir()
            (args.model / "config.json").write_text(json.dumps(MODEL))
        if args.data is None:
            args.data = folder / "rows.jsonl"
            args.data.write_text(20 * (json.dumps(ROW) + "\n"))
        args.model, args.data = args.model.resolve(), args.data.resolve()
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            files = list(pool.map(lambda path: looked_at(path, args, folder), paths))
    if args.json:
        args.json.write_text(json.dumps({"program": str(args.program), "files": files}, indent=1) + "\n")
    report(files, args.top)
    sys.exit(any(file[run]["outcome"] in FAULTS for file in files for run in ("init", "check")))


if __name__ == "__main__":
    main()
