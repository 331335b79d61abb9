#!/usr/bin/env python3
"""How soon does a search propose a setting that is good at full length: `peft-tune search` beside Optuna with TRL?

    scripts/peers/beside_optuna.py PROGRAM MODEL TRAIN.jsonl HELD_OUT.jsonl TABLE.csv FOLDER --python PYTHON [--csv FILE]
        [--searches peft-tune,tpe,gp] [--seeds 0,1,2] [--minutes 60] [--tokens 20000] [--length 100000] [--within 0.02]
        [--only rank=32] [--threads 2]

PYTHON has optuna, torch, transformers, peft and trl; this script needs nothing. MODEL, TRAIN and HELD_OUT are those from which
`scripts/measure/real_table.py` made TABLE. Each search looks for the least loss after trainings of --tokens, in the grid of that
table and with its recipe: the same rows, masks, evaluation, precision and threads. Whenever it would propose another setting, the
table says what that setting's loss is after --length tokens. What counts is the time from the start of the program until it first
proposes a setting whose loss is within --within of the best of the grid, and the time from which it stays there.

    peft-tune      the study says `training.length`, so a part of its time goes to longer trainings
    tpe, gp        Optuna's TPESampler and GPSampler; each trial is a process that runs SFTTrainer, as scripts of users are
    tpe-one ..     the same in one process, which loads libraries, model and rows once for all trials
    tpe-ordered .. as tpe-one, and Optuna knows that rates, ranks and batches have an order, as peft-tune sees by itself

A loss at full length is the mean over the seeds that all settings have there. Settings that TABLE lacks are told, and nothing
is run while one of the grid is among them; `--only rank=32 --only target_modules=all-linear` makes the grid smaller. FOLDER
keeps each run: one that is whole is judged again and not repeated. One that was cut off begins anew, as its times are worth
nothing. A run ends after --minutes, behind what is under way then. Stop other work first: the times are measured.
"""

import argparse
import contextlib
import csv
import datetime
import itertools
import json
import math
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

sys.dont_write_bytecode = True  # not beside the sources
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "measure"))
import real_table  # noqa: E402


class Search(NamedTuple):
    """How a search is made, as the CSV file says it."""

    program: str
    sampler: str
    #: Whether each trial is a process or one has them all.
    processes: str
    #: Whether numbers to choose from have an order for the sampler.
    values: str


SEARCHES = {
    "peft-tune": Search("peft-tune", "auto", "one", "ordered"),
    "tpe": Search("optuna", "tpe", "each", "categorical"),
    "gp": Search("optuna", "gp", "each", "categorical"),
    "tpe-one": Search("optuna", "tpe", "one", "categorical"),
    "gp-one": Search("optuna", "gp", "one", "categorical"),
    "tpe-ordered": Search("optuna", "tpe", "one", "ordered"),
    "gp-ordered": Search("optuna", "gp", "one", "ordered"),
}
STUDY = "beside-optuna"
#: Seconds between two looks at a database under way.
LOOK_S = 0.5
#: Cores that other programs may take before a run without a warning, and the seconds that are looked at.
QUIET, QUIET_S = 0.1, 2.0
#: What the interpreter of Optuna has to have.
PACKAGES = ["optuna", "torch", "transformers", "datasets", "peft", "trl"]
#: What of a database can change its recommendation.
PROGRESS = "select (select count(*) from trial_summary where state = 'complete'), (select count(*) from confirmation_run)"
#: What a search did in all.
COUNTS = """
    select (select count(*) from trial_summary where state not in ('waiting', 'running')), (select count(*) from confirmation_run)
"""


def key_of(setting):
    """A setting as a key of the table, from text or values; a value that is none of the table's kinds makes another key."""
    return int(setting["rank"]), setting["target_modules"], int(setting["global_batch"]), float(setting["learning_rate"])


def setting_text(setting):
    return ", ".join(f"{name} {setting[name]}" for name in real_table.SETTING) if setting else "none"


def settings_text(settings):
    """Settings, those that differ only in the rate in one line."""
    *group, rate = real_table.SETTING
    rates = {}
    for one in settings:
        rates.setdefault(", ".join(f"{name} {one[name]}" for name in group), []).append(f"{one[rate]:g}")
    return "\n".join(f"  {text}, {rate} {', '.join(values)}" for text, values in rates.items())


def grid(only):
    """The settings of the table, as far as they have these values."""
    for name in only:
        if name not in real_table.SETTING:
            sys.exit(f"--only {name}: it is one of {', '.join(real_table.SETTING)}")
    rows = [(*group, rate) for group, rate in itertools.product(real_table.GROUPS, sorted(real_table.RATES))]
    settings = [dict(zip(real_table.SETTING, row)) for row in rows]
    kept = [one for one in settings if all(str(one[name]) == value for name, value in only.items())]
    if not kept:
        values = {name: sorted({one[name] for one in settings}) for name in only}
        sys.exit(f"--only leaves no setting: the table's values are {values}")
    return kept


def space_of(settings):
    """Values by name, of settings that are a product."""
    return {name: sorted({one[name] for one in settings}) for name in real_table.SETTING}


class Table(NamedTuple):
    """Losses at full length."""

    losses: dict
    seeds: list
    best: float
    #: Target tokens of the held-out rows.
    target_tokens: int


def read_table(path, settings, length):
    """The table's losses at a length. Ends where a setting of the grid has none."""
    found, lengths, target_tokens = {}, set(), set()
    with open(path, newline="") as file:
        rows = csv.DictReader(file)
        lacking = {*real_table.COLUMNS, "loss", "target_tokens"} - set(rows.fieldnames or [])
        if lacking:
            sys.exit(f"{path} has no columns {', '.join(sorted(lacking))}: it is no table of scripts/measure/real_table.py")
        for row in rows:
            lengths.add(int(row["tokens"]))
            target_tokens.add(int(row["target_tokens"] or 0))
            if int(row["tokens"]) == length:
                found.setdefault(key_of(row), {})[row["seed"]] = float(row["loss"] or "inf")
                if not row["loss"]:
                    print(f"{path}: {setting_text(row)} has no loss at {length} tokens: it counts as never good", flush=True)
    missing = [one for one in settings if key_of(one) not in found]
    if missing:
        known = ", ".join(map(str, sorted(lengths))) or "none"
        sys.exit(
            f"{path} has no loss at {length} tokens for {len(missing)} of {len(settings)} settings:\n{settings_text(missing)}\n"
            f"let `just real-table` go on, take another --length (it has some settings at {known}), or narrow the grid by --only"
        )
    wanted = [found[key_of(one)] for one in settings]
    seeds = sorted(set.intersection(*(set(one) for one in wanted)))
    if not seeds:
        sys.exit(f"{path} has no seed with which all settings are trained for {length} tokens: let `just real-table` go on")
    losses = {key_of(one): statistics.mean(found[key_of(one)][seed] for seed in seeds) for one in settings}
    best = min(losses.values())
    if math.isinf(best):
        sys.exit(f"{path}: every setting diverged at {length} tokens")
    return Table(losses, seeds, best, max(target_tokens))


def write_rows(folder, given):
    """The rows as chats, and the same chats as TRL's prompts and completions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("train", given.train), ("held_out", given.held_out)):
        real_table.chats(source, folder / f"{name}.jsonl")
        with open(folder / f"{name}.jsonl") as chats, open(folder / f"trl_{name}.jsonl", "w") as out:
            for line in chats:
                messages = json.loads(line)["messages"]
                out.write(json.dumps({"prompt": messages[:-1], "completion": messages[-1:]}) + "\n")


def study_of(given, seed):
    """The study file of a search: the table's recipe, with the grid as its space."""
    values = [given.space[name][0] for name in real_table.SETTING]
    recipe = real_table.recipe(given.model, given.folder / "data", *values, seed, given.tokens)
    batch, schedule = recipe["batch"], recipe["schedule"]
    fixed = {
        "alpha_ratio": recipe["adapter"]["alpha"] / recipe["adapter"]["rank"],
        "precision": recipe["precision"],
        "micro_batch": batch["micro_batch"],
        "packing": batch["packing"],
        "optimizer": recipe["optimizer"]["kind"],
        "schedule": schedule["kind"],
        "warmup": schedule["warmup"],
    }
    return {
        "study": STUDY,
        "model": recipe["model"],
        "data": recipe["data"],
        "objectives": ["loss"],
        "space": {**given.space, **fixed},
        "trial": {
            "sequence_length": batch["sequence_length"],
            "training_tokens": given.tokens,
            "evaluation": {"rows": recipe["training"]["evaluation_rows"], "times": 1},
        },
        "training": {"length": {"tokens": given.length}},
        "budget": {"trials": 100_000, "time": f"{round(60 * given.minutes)}s"},
        "seed": seed,
    }


def progress_of(database):
    """What has ended so far, as far as it can be read now."""
    if not database.exists():
        return None
    try:
        with opened(database) as source:
            return source.execute(PROGRESS).fetchone()
    except sqlite3.OperationalError:
        # Its tables are not there yet, or it is being written.
        return None


def opened(database):
    return contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True))


def copy_of(database, target):
    with opened(database) as source, contextlib.closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return target


def watched(process, database):
    """Copies of a search's database until it ends, with the seconds since it began: one whenever a trial or a repeat has ended."""
    began, copies, progress = time.time(), [], None
    while True:
        is_over = process.poll() is not None
        now = progress_of(database)
        if now != progress and now and now[0]:
            seconds, progress = time.time() - began, now
            copies.append((seconds, copy_of(database, database.with_name(f"copy-{len(copies)}.db"))))
        if is_over:
            return copies, time.time() - began
        time.sleep(LOOK_S)


def search_here(given, _, seed, folder):
    """Searches; the settings that it would have recommended, by the copies of its database made on the way. They are read when the
    search is over, so that it is alone on the machine."""
    (folder / "study.yaml").write_text(json.dumps(study_of(given, seed)))
    database = folder / "study.db"
    command = [given.program, "search", folder / "study.yaml", "--db", database, "--threads", str(given.threads), "--json"]
    with open(folder / "screen.txt", "w") as screen:
        process = subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT)
        try:
            copies, wall_s = watched(process, database)
        finally:
            process.terminate()
    if process.returncode:
        sys.exit(f"{given.program} search ended with {process.returncode}: see {folder / 'screen.txt'}")
    for seconds, copy in copies:
        explained = subprocess.run([given.program, "explain", STUDY, "--db", copy, "--json"], capture_output=True, text=True)
        if explained.returncode:
            sys.exit(f"{given.program} explain --db {copy}: {explained.stderr}")
        proposed = json.loads(explained.stdout)["recommendation"]["params"]
        copy.unlink()
        # A parameter of one value is no parameter.
        proposed = proposed and {name: proposed.get(name, values[0]) for name, values in given.space.items()}
        yield {"seconds": seconds, "proposed": proposed}
    with opened(database) as source:
        trials, confirmations = source.execute(COUNTS).fetchone()
    # No setting is tried twice but to confirm it.
    yield {"wall_s": wall_s, "trials": trials, "settings": trials, "confirmations": confirmations}


def search_there(given, search, seed, folder):
    """Runs a study of Optuna; what it proposes after each trial."""
    began = time.time()
    request = {
        **search._asdict(),
        "model": str(given.model),
        "data": str(given.folder / "data"),
        "folder": str(folder),
        "proposals": str(folder / "trials.jsonl"),
        "space": given.space,
        "seed": seed,
        "tokens": given.tokens,
        "evaluation_rows": real_table.EVALUATION_ROWS,
        "began": began,
        "ends": began + 60 * given.minutes,
    }
    (folder / "request.json").write_text(json.dumps(request))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(given.threads),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [given.python, HERE / "beside_optuna_trials.py", folder / "request.json"]
    with open(folder / "screen.txt", "w") as screen:
        done = subprocess.run(command, stdout=screen, stderr=subprocess.STDOUT, env=environment)
    wall_s = time.time() - began
    if done.returncode:
        sys.exit(f"the study of Optuna ended with {done.returncode}: see {folder / 'screen.txt'}")
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    yield from lines
    yield {"wall_s": wall_s, "trials": len(lines), "settings": len({key_of(line["tried"]) for line in lines}), "confirmations": 0}


def busy_cores():
    """Cores that other programs take at the moment."""
    ticks = []
    for pause in (QUIET_S, 0.0):
        user, nice, system, idle, waiting, *others = map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:])
        busy = user + nice + system + sum(others[:3])
        ticks.append((busy, busy + idle + waiting))
        time.sleep(pause)
    (busy, total), (busy_then, total_then) = ticks
    return os.cpu_count() * (busy_then - busy) / max(total_then - total, 1)


def run_of(given, name, seed):
    """The lines of a run: what it proposed and when, and its end. Runs it where FOLDER does not have it."""
    asked = {"seed": seed, **{key: getattr(given, key) for key in ("space", "minutes", "tokens", "length", "threads")}}
    asked |= {key: str(getattr(given, key)) for key in ("model", "train", "held_out")}
    folder = given.folder / f"{name}-seed{seed}"
    whole = folder / "run.json"
    if whole.exists():
        run = json.loads(whole.read_text())
        if run["asked"] != asked:
            sys.exit(f"{folder} was made by other arguments, {run['asked']}: name another folder or remove it")
        return run
    if folder.exists():
        print(f"{folder}: it was cut off and begins anew", flush=True)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    busy = busy_cores()
    if busy > QUIET:
        print(f"warning: other programs take {busy:.1f} cores before {folder.name}, and part in its times: stop them", flush=True)
    search = SEARCHES[name]
    searched = search_here if search.program == "peft-tune" else search_there
    *lines, end = searched(given, search, seed, folder)
    run = {"asked": asked, "date": str(datetime.date.today()), "busy_cores": round(busy, 2), "proposals": lines, "end": end}
    part = folder / "run.part"
    part.write_text(json.dumps(run))
    part.rename(whole)
    return run


def judged(table, within, run):
    """Seconds until a proposal is first within the best, and from which on all are; the last proposal and its loss."""
    limit = (1 + within) * table.best
    good = [
        (line["seconds"], line["proposed"] is not None and table.losses.get(key_of(line["proposed"]), math.inf) <= limit)
        for line in run["proposals"]
    ]
    first = next((seconds for seconds, is_good in good if is_good), None)
    stays = None
    for seconds, is_good in good:
        stays = (seconds if stays is None else stays) if is_good else None
    proposed = run["proposals"][-1]["proposed"] if run["proposals"] else None
    loss = table.losses.get(key_of(proposed)) if proposed else None
    return {"within_s": first, "stays_s": stays, **run["end"], "proposed": proposed, "loss": loss}


def line_of(given, table, name, seed, run, found):
    """A line of the CSV file."""
    number = lambda value, digits: "" if value is None else round(value, digits)
    return {
        "machine": given.machine,
        "date": run["date"],
        "command": "scripts/peers/beside_optuna.py",
        **SEARCHES[name]._asdict(),
        "seed": seed,
        "minutes": given.minutes,
        "tokens": given.tokens,
        "length": given.length,
        "busy_cores": run["busy_cores"],
        **{key: found[key] for key in ("trials", "settings", "confirmations")},
        **{key: number(found[key], 1) for key in ("within_s", "stays_s", "wall_s")},
        **{key: (found["proposed"] or {}).get(key, "") for key in real_table.SETTING},
        "loss": number(found["loss"], 6),
        "best": number(table.best, 6),
    }


def said_of(found):
    """A run in a line, for the screen."""
    good = "never good" if found["within_s"] is None else f"good after {found['within_s']:.0f} s"
    loss = "" if found["loss"] is None else f", which ends at {found['loss']:.4f}"
    return f"{found['trials']} trials in {found['wall_s']:.0f} s, {good}, proposes {setting_text(found['proposed'])}{loss}"


def notes_of(table, folder, run):
    """What is odd about a run, a line each."""
    outside = {key_of(line["proposed"]) for line in run["proposals"] if line["proposed"]} - set(table.losses)
    if outside:
        yield f"{folder}: {len(outside)} proposals are no settings of the grid and count as not good: {sorted(outside)}"
    if not run["proposals"]:
        yield f"{folder}: no trial ended; allow more --minutes"
    counts = {line["target_tokens"] for line in run["proposals"] if "target_tokens" in line} - {table.target_tokens}
    if counts:
        yield f"{folder}: its losses are of {sorted(counts)} target tokens, those of the table of {table.target_tokens}"


def median(values, digits=0):
    """The middle one, where None is beyond all."""
    middle = statistics.median(math.inf if value is None else value for value in values)
    return "never" if math.isinf(middle) else f"{middle:,.{digits}f}"


def print_medians(given, table, found):
    percent = f"{100 * given.within:g}%"
    print(f"\n| search | runs | trials | settings | s to within {percent} | runs | s until it stays | runs | above the best | wall s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, runs in found.items():
        all_of = lambda key: [run[key] for run in runs]
        reached, stay = (sum(value is not None for value in all_of(key)) for key in ("within_s", "stays_s"))
        over = median([None if run["loss"] is None else 100 * (run["loss"] / table.best - 1) for run in runs], 1)
        print(
            f"| {name} | {len(runs)} | {median(all_of('trials'))} | {median(all_of('settings'))} "
            f"| {median(all_of('within_s'))} | {reached} | {median(all_of('stays_s'))} | {stay} "
            f"| {over}{'' if over == 'never' else '%'} | {median(all_of('wall_s'))} |"
        )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["program", "model", "train", "held_out", "table", "folder"]:
        parser.add_argument(name, type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--python", default=sys.executable, help="interpreter that has optuna, torch, transformers, peft and trl")
    parser.add_argument("--csv", type=pathlib.Path, help="file that gets one line for each run")
    parser.add_argument("--machine", default="?", help="its name there")
    parser.add_argument("--searches", default="peft-tune,tpe,gp,tpe-one,gp-one", help=f"of {', '.join(SEARCHES)}")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--minutes", type=float, default=60.0, help="of each run")
    parser.add_argument("--tokens", type=int, default=20_000, help="that a trial trains")
    parser.add_argument("--length", type=int, default=100_000, help="tokens of a training at full length, as in the table")
    parser.add_argument("--within", type=float, default=0.02, help="share above the least loss that is good")
    parser.add_argument("--only", action="append", default=[], metavar="NAME=VALUE", help="settings of the grid with this value")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    for name in given.searches.split(","):
        if name not in SEARCHES:
            parser.error(f"--searches: `{name}` is none of {', '.join(SEARCHES)}")
    if not all("=" in one for one in given.only):
        parser.error("--only takes NAME=VALUE, such as rank=32")
    for file in (given.train, given.held_out, given.table):
        if not file.is_file():
            parser.error(f"{file} is no file")
    if shutil.which(given.program) is None:
        parser.error(f"{given.program} is no program: build it by `cargo build --release`")
    if any(SEARCHES[name].program == "optuna" for name in given.searches.split(",")):
        check_packages(parser, given.python)
    return given


def check_packages(parser, python):
    """Ends where the interpreter lacks what Optuna's searches need, before a run of an hour is over."""
    find = f"import importlib.util as find; print(*(name for name in {PACKAGES} if not find.find_spec(name)))"
    try:
        lacking = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        parser.error(f"--python {python}: {error}")
    if lacking:
        parser.error(f"{python} lacks {lacking}: install them, name another interpreter by --python, or leave --searches peft-tune")


def main():
    given = arguments()
    settings = grid(dict(one.split("=", 1) for one in given.only))
    table = read_table(given.table, settings, given.length)
    given.space = space_of(settings)
    good = sum(loss <= (1 + given.within) * table.best for loss in table.losses.values())
    print(f"{len(settings)} settings, trained for {given.length:,} tokens with seeds {', '.join(table.seeds)}: the least loss is "
          f"{table.best:.4f}, and {good} are within {100 * given.within:g}% of it", flush=True)
    write_rows(given.folder / "data", given)
    found, lines = {}, []
    for seed, name in itertools.product(map(int, given.seeds.split(",")), given.searches.split(",")):
        run = run_of(given, name, seed)
        one = judged(table, given.within, run)
        found.setdefault(name, []).append(one)
        lines.append(line_of(given, table, name, seed, run, one))
        print(f"{name}, seed {seed}: {said_of(one)}", flush=True)
        for note in notes_of(table, given.folder / f"{name}-seed{seed}", run):
            print(f"warning: {note}", flush=True)
        if given.csv:
            with open(given.csv, "w", newline="") as out:
                writer = csv.DictWriter(out, lines[0], lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)
    print_medians(given, table, found)


if __name__ == "__main__":
    main()
