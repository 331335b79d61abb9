#!/usr/bin/env python3
"""Counts what one layer asks of a GPU in a step: launches, and the bytes of its products, as the GPU in software sees them.

    python3 scripts/gpu/layer_launches.py PROGRAM FOLDER [--rank 16] [--precision bf16] [--longer] [--model FOLDER_WITH_TOKENIZER]

Trains models of two and of four layers for two and for four steps on the stand-in (LD_LIBRARY_PATH names its libraries, as
scripts/gpu/stand-in-test.sh does). The difference of the differences is what two layers ask for in two steps: whatever is done once a
process, once a step or once a model goes out of it. Prints a table of kernels, by name, and what all products read and write.

With --longer the products of quantized weights take those of adapters along, as a GPU does where it finds that to be faster: one training
is made before, by a stand-in on which each product takes its time, and what it found out is taken by those that count.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, STEPS = (2, 4), (2, 4)
# Heads of 32, and an MLP of its own width.
SHAPE = dict(heads=4, kv_heads=2, hidden=128, inner=384)

RECIPE = """model: {model}
data: {{train: {rows}/train.jsonl, held_out: {rows}/held_out.jsonl}}
adapter: {{rank: {rank}, alpha: 16, target_modules: all-linear}}
precision: {precision}
gradient_checkpointing: none
batch: {{micro_batch: 2, gradient_accumulation: 1, sequence_length: 32}}
optimizer: {{kind: adamw, learning_rate: 2e-3, max_grad_norm: 1.0}}
schedule: {{kind: constant}}
training: {{length: {{steps: {steps}}}, shuffle: false, evaluation_rows: 1}}
"""


def logged(arguments, layers, steps, **others):
    """Operations of a training, by what the stand-in's log says of each."""
    model = f"{arguments.folder}/model-{layers}"
    if not os.path.exists(model):
        shape = [SHAPE["hidden"], layers, SHAPE["heads"], SHAPE["kv_heads"], SHAPE["inner"]]
        subprocess.run([sys.executable, f"{HERE}/make_model.py", model, arguments.model, *map(str, shape)], check=True, stdout=sys.stderr)
    recipe = f"{arguments.folder}/recipe-{layers}-{steps}.yaml"
    rows = os.path.dirname(os.path.abspath(arguments.model))
    with open(recipe, "w") as file:
        file.write(RECIPE.format(model=os.path.abspath(model), rows=rows, rank=arguments.rank, precision=arguments.precision, steps=steps))
    command = [arguments.program, "train", recipe, "--output", f"{recipe}-out", "--force", "--device", "cuda", "--json"]
    # One algorithm for each shape: none is timed.
    how = {"STAND_IN_GPU_PRODUCT_TIMES": "0", "PEFT_TUNE_KERNELS": f"{arguments.folder}/kernels"} if arguments.longer else {"PEFT_TUNE_PRODUCTS": "first"}
    environment = {**os.environ, "STAND_IN_GPU_LOG": "1", **how, **others}
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    counts = collections.Counter()
    for line in done.stderr.splitlines():
        found = re.match(r"queue \d+: (\S+)(.*?) (\d+)$", line)
        if found and found[1] not in ("workspace", "free"):
            counts[operation(found[1], found[2])] += 1
    return counts


def operation(name, detail):
    """(kernel, bytes that it reads and writes where it is a product)"""
    product = re.search(r"(\d+) x (\d+) of (\d+), beta (\S+), (\d+) and (\d+) bytes", detail)
    if not product:
        return name, 0
    rows, columns, depth = (int(product[i]) for i in (1, 2, 3))
    result = rows * columns * (1 if product[4] == "0" else 2)
    return "product", int(product[5]) * (rows + columns) * depth + int(product[6]) * result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--model", default=f"{HERE}/../../search_spaces/quickstart/base")
    parser.add_argument("--longer", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    difference = collections.Counter()
    if arguments.longer:
        logged(arguments, LAYERS[0], STEPS[0], STAND_IN_GPU_PRODUCT_TIMES="20000")
    for layers in LAYERS:
        for steps in STEPS:
            sign = 1 if (layers == LAYERS[1]) == (steps == STEPS[1]) else -1
            for one, count in logged(arguments, layers, steps).items():
                difference[one] += sign * count
    share = (LAYERS[1] - LAYERS[0]) * (STEPS[1] - STEPS[0])
    launches, moved = collections.Counter(), 0
    for (name, size), count in difference.items():
        launches[name] += count
        moved += size * count
    launches = {name: count / share for name, count in sorted(launches.items()) if count}
    if arguments.json:
        print(json.dumps(dict(launches=launches, bytes_of_products=moved / share)))
        return
    print("| kernel | launches |\n|---|---:|")
    for name, count in launches.items():
        print(f"| {name} | {count:g} |")
    print(f"\nproducts read and write {moved / share:,.0f} bytes")


if __name__ == "__main__":
    main()
