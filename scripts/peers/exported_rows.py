#!/usr/bin/env python3
"""Compares the rows that a tool trains on, from its exported file, with those of the engine: all of them, by token.

    scripts/peers/exported_rows.py PROGRAM --tool trl|llamafactory|axolotl|torchtune|unsloth [--python PY] [--forms a,b]
                                   [--length N] [--packing] [--base MODEL] [--no-data] [--keep FOLDER] [--json]

Every form of data (exported_rows_forms.py) is searched for one step, exported and read by the tool itself
(exported_rows_readers.py), which needs no GPU. Ids and labels of all rows are compared in any order, and so is their
number; the held-out rows as well, where the tool evaluates. The first label of a row counts nowhere: nothing comes
before it. With --packing the documents of packed rows are; only torchtune packs without a GPU. --no-data exports the tool's
file alone, which names the data that the study names.

Checked with TRL 1.16.0, LLaMA-Factory 0.9.5, axolotl 0.19.0 and torchtune 0.6.1 (.ci/tools.sh). A tool that is not
installed is not compared. Ends with status 1 where something differs and no warning of the export is about the data, 2
for a wrong command line.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # not beside the sources
from exported_rows_forms import FORMS, write_rows  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parents[1] / "search_spaces" / "quickstart" / "base"
#: What has to be installed for a tool's file to be read.
PACKAGES = {"unsloth": ("trl", "peft"), "trl": ("trl", "peft")}
TRAINING_ROWS, HELD_OUT_ROWS = 24, 6
FILES = {
    "trl": "trl_sft.yaml",
    "llamafactory": "llamafactory.yaml",
    "axolotl": "axolotl.yaml",
    "torchtune": "torchtune.yaml",
    "unsloth": "unsloth_train.py",
}

Compared = collections.namedtuple("Compared", "is_same text")


class ExportRefused(RuntimeError):
    """The export says itself that the tool cannot have these rows."""


def study_of(form, folder, length, python, model=BASE, packing=False):
    """Writes the files of a form and a study of one trial, and returns the study's path."""
    names = [f"rows-{number}.{form.extension}" for number in range(form.files)]
    share = TRAINING_ROWS // form.files
    for number, name in enumerate(names):
        write_rows(folder / name, [form.row(at) for at in range(number * share, (number + 1) * share)], python)
    held_out = f"held-out.{form.extension}"
    write_rows(folder / held_out, [form.row(at) for at in range(100, 100 + HELD_OUT_ROWS)], python)
    data = {"train": names if form.files > 1 else names[0], "held_out": form.held_out or held_out, **form.data}
    if form.template:
        (folder / "template.jinja").write_text(form.template, encoding="utf-8")
        data["chat_template"] = "template.jinja"
    study = {
        "study": "rows",
        "model": str(model),
        "data": data,
        "seed": 1,
        "space": {
            "rank": 2,
            "learning_rate": {"low": 1e-3, "high": 5e-3, "scale": "log"},
            "micro_batch": 2,
            "global_batch": 4,
            "sequence_length": length,
            "precision": "fp32",
            "packing": packing,
        },
        "trial": {"profile_steps": 1, "training_steps": 1, "evaluation": {"rows": 2}},
        "confirm": "none",
        "budget": {"trials": 1},
    }
    path = folder / "study.yaml"
    path.write_text(json.dumps(study), encoding="utf-8")
    return path


def run(program, *words, folder):
    ran = subprocess.run([program, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or ["?"]
        raise RuntimeError(next((line for line in lines if line.startswith("error")), lines[-1]))
    return ran


def exported(program, tool, folder, more):
    """Exports a trial as a recipe and for the tool; the recipe, and what the export warned of."""
    run(program, "export", "--db", "rows.db", "--format", "recipe", "--output", "recipe", folder=folder)
    try:
        ran = run(program, "export", "--db", "rows.db", "--format", tool, "--output", tool, *more, folder=folder)
    except RuntimeError as error:
        raise ExportRefused(error) from error
    warnings = [line.removeprefix("warning: ") for line in ran.stderr.splitlines() if line.startswith("warning: ")]
    return folder / "recipe" / "recipe.yaml", warnings


def documents(row):
    """The documents of a micro-batch, as ids and labels."""
    tokens = row["tokens"]
    starts = [0, *row.get("boundaries", []), len(tokens)]
    for begin, end in zip(starts, starts[1:]):
        yield labelled(tokens[begin:end])


def labelled(tokens):
    return [token["id"] for token in tokens], [token["id"] if token["target"] else -100 for token in tokens]


def rows_of_engine(program, recipe, length):
    """The rows of an epoch and those held out, as the engine cuts them; and each token's text."""
    # A global batch of more rows than there are: one step is the epoch.
    whole = recipe.with_name("whole.yaml")
    whole.write_text(
        re.sub(r"gradient_accumulation: \d+", "gradient_accumulation: 500", recipe.read_text()), encoding="utf-8"
    )

    def shown_by(file, *words):
        return json.loads(run(program, "rows", file.name, *words, "--count", 100, "--json", folder=file.parent).stdout)

    epoch, shown = shown_by(whole, "--step", 0), shown_by(recipe, "--held-out")
    training = [document for row in epoch["rows"] for document in documents(row)]
    held_out = []
    for row in shown["rows"]:
        if row["left_out"]:
            continue
        tokens = row["tokens"]
        pieces = range(0, len(tokens), length) if row["is_running"] else [0]
        held_out.extend(labelled(tokens[at : at + length]) for at in pieces)
    texts = {token["id"]: token["text"] for row in epoch["rows"] + shown["rows"] for token in row["tokens"]}
    return training, [row for row in held_out if has_targets(row)], texts


def has_targets(row):
    return any(label != -100 for label in row[1][1:])


def counted(rows):
    """Rows in any order; nothing predicts the first token."""
    return collections.Counter((tuple(ids), (-100, *labels[1:])) for ids, labels in rows)


def compare(ours, theirs, texts):
    ours, theirs = counted(ours), counted(theirs)
    if ours == theirs:
        return Compared(True, f"same, {ours.total()} rows")
    only_ours, only_theirs = list((ours - theirs).elements()), list((theirs - ours).elements())
    parts = [f"{len(only_ours)} of {ours.total()} rows differ" if only_ours else f"all {ours.total()} rows are there"]
    if ours.total() != theirs.total():
        parts.append(f"{theirs.total()} rows there")
    if only_ours and only_theirs:
        parts.append(first_difference(only_ours, only_theirs, texts))
    empty = sum(not has_targets(row) for row in only_theirs)
    if empty:
        parts.append(f"{empty} without a target")
    return Compared(False, "; ".join(parts))


def first_difference(ours, theirs, texts):
    """Where the most alike of the rows that differ part, with the tokens around it and how many are learnt."""

    def common(one, other):
        return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))

    def show(row, at):
        learnt = [label != -100 for label in row[1]]
        words = [texts.get(token, f"<{token}>") for token in row[0]]
        around = list(zip(words, learnt))[max(0, at - 3) : at + 4]
        return "".join(f"[{word}]" if is_learnt else word for word, is_learnt in around)

    row = ours[0]
    other = max(theirs, key=lambda one: (common(row[0], one[0]), common(row[1], one[1])))
    of_ids = common(row[0], other[0])
    same_ids = row[0] == other[0]
    at = common(row[1], other[1]) if same_ids else of_ids
    counts = [sum(label != -100 for label in one[1]) for one in (row, other)]
    return (
        f"{'targets' if same_ids else 'tokens'} differ from token {at}: {show(row, at)!r} of {len(row[0])} tokens, "
        f"{counts[0]} learnt; "
        f"there {show(other, at)!r} of {len(other[0])}, {counts[1]} learnt"
    )


def verdict(form, warnings, ours, theirs, texts):
    """One row of the table: what came of training and held-out rows, and whether the export told it."""
    told = [warning for warning in warnings if re.match(r"`(data|batch\.sequence_length)", warning)]
    # A fraction takes its held-out rows from those that are trained on.
    is_held_out = not FORMS[form].held_out
    of_training = [warning for warning in told if not (is_held_out and warning.startswith("`data.held_out`"))]
    line = {"form": form, "training": "", "held_out": "", "warnings": told}
    if "refused" in theirs:
        return {**line, "training": f"refused: {theirs['refused']}", "is_same": False, "is_told": bool(of_training)}
    training = compare(ours[0], theirs["training"], texts)
    line["training"], line["is_same"], line["is_told"] = training.text, training.is_same, bool(of_training)
    if theirs["held_out"] is None:
        line["held_out"] = "not evaluated"
    else:
        held_out = compare(ours[1], theirs["held_out"], texts)
        line["held_out"] = held_out.text
        line["is_same"] &= held_out.is_same
        line["is_told"] = bool(of_training) if not training.is_same else bool(told)
    return line


def is_installed(tool, python):
    names = PACKAGES.get(tool, (tool,))
    look = f"import importlib.util as u, sys; sys.exit(any(u.find_spec(name) is None for name in {names!r}))"
    return subprocess.run([python, "-I", "-c", look], capture_output=True, check=False).returncode == 0


def compared(options, scratch):
    """Exports all forms, has the tool read them in one process, and yields a row of the table for each."""
    ready = {}
    for name in options.forms:
        folder = scratch / name
        folder.mkdir()
        try:
            study = study_of(FORMS[name], folder, options.length, options.python, options.base, options.packing)
            # What is measured does not matter here, and so nothing waits for a quiet machine.
            run(options.program, "search", study.name, "--db", "rows.db", "--wait-quiet", "0s", folder=folder)
            recipe, warnings = exported(options.program, options.tool, folder, ["--no-data"] if options.no_data else [])
            ready[name] = warnings, rows_of_engine(options.program, recipe, options.length)
        except RuntimeError as error:
            text, is_told = f"not exported: {error}", isinstance(error, ExportRefused)
            yield {"form": name, "training": text, "held_out": "", "warnings": [], "is_same": False, "is_told": is_told}
    folders = [scratch / name / options.tool for name in ready]
    environment = {**os.environ, "HF_HOME": str(scratch / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [options.python, HERE / "exported_rows_readers.py", options.tool, *folders]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for name, (warnings, (training, held_out, texts)) in ready.items():
        read = scratch / name / f"{options.tool}.json"
        said = (ran.stderr.strip().splitlines() or ["the reader ended"])[-1]
        theirs = json.loads(read.read_text()) if read.exists() else {"refused": said}
        yield verdict(name, warnings, (training, held_out), theirs, texts)


def forms_of(text):
    names = text.split(",")
    for name in names:
        if name not in FORMS:
            raise argparse.ArgumentTypeError(f"no form {name}; there are {', '.join(FORMS)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--tool", choices=FILES, required=True)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the tool")
    parser.add_argument("--forms", type=forms_of, default=list(FORMS), help="names with commas between")
    parser.add_argument("--length", type=int, default=64, help="sequence length in tokens")
    parser.add_argument("--packing", action="store_true", help="pack rows, of which documents are compared")
    parser.add_argument("--base", type=lambda path: pathlib.Path(path).resolve(), default=BASE, help="folder of the model")
    parser.add_argument("--no-data", action="store_true", help="export without the rows")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the exported files, which stay there")
    options = parser.parse_args()
    if not is_installed(options.tool, options.python):
        print(f"{options.tool}: not compared, it is not installed for {options.python}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        lines = list(compared(options, options.keep.resolve() if options.keep else pathlib.Path(scratch)))
    lines.sort(key=lambda line: options.forms.index(line["form"]))
    if options.json:
        print(json.dumps({"tool": options.tool, "length": options.length, "rows": lines}, indent=1))
    else:
        print(f"| form, {options.tool} at {options.length} tokens | training | held out | told |\n|---|---|---|---|")
        for line in lines:
            told = "" if line["is_same"] else "yes" if line["is_told"] else "**no**"
            cells = (line["form"], line["training"], line["held_out"], told)
            print("| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|")[:330] for cell in cells) + " |")
    return int(any(not line["is_same"] and not line["is_told"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
