#!/usr/bin/env python3
"""Trains ten steps from one adapter with the engine, a plain loop over PEFT and the tools, each from its exported file.

    scripts/peers/ten_steps.py PROGRAM --tools trl=PY,loop=PY,llamafactory=PY,torchtune=PY [--form plain] [--length N]
                               [--accumulation N] [--as-stored] [--no-data] [--json]

PY is the interpreter that has the tool; `loop` needs PyTorch, transformers and PEFT. All is fp32 on
the CPU: the quickstart's model, rows of one form (exported_rows_forms.py) in the order of the file, LoRA with a B that
is not zero, AdamW, and a cosine with a warm-up that goes into a second epoch. ten_steps_readers.py says what is done to
a tool so that it starts from that adapter.

Losses have to be the engine's within 1e-5 of their value and learning rates within 1e-9; else the script ends with
status 1. A tool that is not installed is not compared. The base is stored in fp32 here, because LLaMA-Factory computes
in what the base is stored in, whatever its file says; --as-stored takes the quickstart's own, which is bf16.
"""

import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # not beside the sources
from exported_rows import BASE, FILES, is_installed, rows_of_engine, run, study_of  # noqa: E402
from exported_rows_forms import FORMS  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
STEPS, GLOBAL_BATCH, LOSS_WITHIN, RATE_WITHIN = 10, 4, 1e-5, 1e-9


def fields(message):
    """Number and value of each field of a protocol buffer's message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at : at + size]
        at += size


def steps_of_engine(folder):
    """Loss and learning rate of each step, as the event file of TensorBoard has them."""
    steps = {}
    for path in folder.glob("events*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = list(fields(content[at + 12 : at + 12 + size]))
            at += 16 + size
            summaries = (summary for number, summary in event if number == 5)
            for value in (value for summary in summaries for number, value in fields(summary) if number == 1):
                scalar = dict(fields(value))
                name = scalar[1].decode().removeprefix("train/")
                if name in ("loss", "learning_rate"):
                    steps.setdefault(dict(event)[2], {})[name] = struct.unpack("<f", scalar[2])[0]
    return [steps[step] for step in sorted(steps)]


def base_in_fp32(folder):
    """A copy of the quickstart's base with every bf16 number written in fp32, which has the same upper half."""
    base = folder / "base"
    shutil.copytree(BASE, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}), encoding="utf-8")
    content = (base / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header, numbers = json.loads(content[8 : 8 + size]), content[8 + size :]
    for tensor in (value for name, value in header.items() if name != "__metadata__"):
        assert tensor["dtype"] == "BF16", tensor
        tensor.update(dtype="F32", data_offsets=[2 * offset for offset in tensor["data_offsets"]])
    wide = bytearray(2 * len(numbers))
    wide[2::4], wide[3::4] = numbers[::2], numbers[1::2]
    text = json.dumps(header).encode()
    (base / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + wide)
    return base


def prepared(options, folder):
    """A searched study, its recipe, and an adapter that a few steps of another order and rate have trained."""
    study = study_of(FORMS[options.form], folder, options.length, sys.executable)
    words = json.loads(study.read_text())
    if not options.as_stored:
        words["model"] = str(base_in_fp32(folder))
    words["training"] = {"length": {"steps": STEPS}, "shuffle": False}
    words["space"].update(
        rank=4,
        target_modules="all-linear",
        dropout=0.0,
        schedule="cosine",
        warmup=0.2,
        optimizer="adamw",
        weight_decay=0.01,
        gradient_checkpointing="none",
        micro_batch=GLOBAL_BATCH // options.accumulation,
        global_batch=GLOBAL_BATCH,
    )
    study.write_text(json.dumps(words), encoding="utf-8")
    run(options.program, "search", study.name, "--db", "rows.db", "--wait-quiet", "0s", folder=folder)
    run(options.program, "export", "--db", "rows.db", "--format", "recipe", "--output", "recipe", folder=folder)
    recipe = folder / "recipe" / "recipe.yaml"
    text = recipe.read_text()
    earlier = text.replace(f"steps: {STEPS}", "steps: 4").replace("shuffle: false", "shuffle: true")
    recipe.with_name("earlier.yaml").write_text(earlier, encoding="utf-8")
    run(
        options.program,
        "train",
        "earlier.yaml",
        "--output",
        folder / "earlier",
        "--device",
        "cpu",
        folder=recipe.parent,
    )
    continued = text.replace("\nadapter:\n", f"\nadapter:\n  adapter_init: {folder / 'earlier'}\n")
    recipe.write_text(continued, encoding="utf-8")
    return recipe


def steps_of_tool(options, tool, python, folder, rows):
    name = "trl" if tool == "loop" else tool
    more = ["--no-data"] if options.no_data else []
    run(options.program, "export", "--db", "rows.db", "--format", name, "--output", tool, *more, folder=folder)
    assert (folder / tool / FILES[name]).is_file()
    if tool == "loop":
        (folder / tool / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    environment = {**os.environ, "HF_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, HERE / "ten_steps_readers.py", tool, folder / tool, folder / "earlier"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (folder / f"{tool}.log").write_text(ran.stdout + ran.stderr, encoding="utf-8")
    read = folder / f"{tool}.json"
    return json.loads(read.read_text()) if read.exists() else (ran.stderr.strip().splitlines() or ["?"])[-1]


def distance(ours, theirs):
    """The largest relative difference of losses, and of learning rates absolutely."""
    pairs = list(zip(ours, theirs))
    of_losses = max(abs(our["loss"] - their["loss"]) / abs(our["loss"]) for our, their in pairs)
    return of_losses, max(abs(our["learning_rate"] - their["learning_rate"]) for our, their in pairs)


def is_same(ours, theirs):
    if isinstance(theirs, str) or len(theirs) != len(ours):
        return False
    of_losses, of_rates = distance(ours, theirs)
    return of_losses <= LOSS_WITHIN and of_rates <= RATE_WITHIN


def tools_of(text):
    tools = dict(one.partition("=")[::2] for one in text.split(","))
    for tool in tools:
        if tool not in ("loop", *FILES):
            raise argparse.ArgumentTypeError(f"no tool {tool}; there are loop, {', '.join(FILES)}")
    return {tool: python or sys.executable for tool, python in tools.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--tools", type=tools_of, required=True, help="names, each with its interpreter")
    parser.add_argument("--form", choices=FORMS, default="plain")
    parser.add_argument("--length", type=int, default=64, help="sequence length in tokens")
    parser.add_argument("--accumulation", type=int, choices=(1, 2, 4), default=2, help="micro-batches of a step")
    parser.add_argument("--as-stored", action="store_true", help="take the base in bf16, as it is stored")
    parser.add_argument("--no-data", action="store_true", help="export without the rows")
    parser.add_argument("--json", action="store_true", help="print all steps as JSON")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the files, which stay there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep.resolve() if options.keep else pathlib.Path(scratch)
        recipe = prepared(options, folder)
        rows = rows_of_engine(options.program, recipe, options.length)[0]
        run(options.program, "train", recipe.name, "--output", folder / "out", "--device", "cpu", folder=recipe.parent)
        ours = steps_of_engine(folder / "out" / "tensorboard")
        found = {}
        for tool, python in options.tools.items():
            if not is_installed("trl" if tool == "loop" else tool, python):
                print(f"{tool}: not compared, it is not installed for {python}", file=sys.stderr)
                continue
            found[tool] = steps_of_tool(options, tool, python, folder, rows)
    if options.json:
        print(json.dumps({"form": options.form, "length": options.length, "peft-tune": ours, **found}, indent=1))
        return int(any(not is_same(ours, steps) for steps in found.values()))
    losses = " | ".join(f"{step['loss']:.6f}" for step in (ours[0], ours[-1]))
    print(f"{options.form}, {len(rows)} rows at {options.length} tokens, {len(ours)} steps\n")
    print("| trained by | first loss | last loss | losses differ by | learning rates by | |\n|---|---|---|---|---|---|")
    print(f"| peft-tune train | {losses} | | | |")
    failed = False
    for tool, steps in found.items():
        if isinstance(steps, str) or len(steps) != len(ours):
            failed = True
            print(f"| {tool} | | | | | {steps if isinstance(steps, str) else f'{len(steps)} steps'} |")
            continue
        of_losses, of_rates = distance(ours, steps)
        failed |= not is_same(ours, steps)
        losses = " | ".join(f"{step['loss']:.6f}" for step in (steps[0], steps[-1]))
        verdict = "same" if is_same(ours, steps) else "**differs**"
        print(f"| {tool} | {losses} | {of_losses:.1e} | {of_rates:.1e} | {verdict} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
