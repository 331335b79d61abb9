#!/usr/bin/env python3
"""Several trainings on one base in the same passes, against one after the other.

    scripts/measure/together.py --binary target/release/peft-tune [--shape 135m] [--work DIR] [--precisions bf16,nf4] [--rows 1,2]
        [--counts 2,4,8,16] [--length 256] [--steps 6] [--pairs 2]           # measured here
    scripts/measure/together.py --paper [--length 1024] [--rank 16]          # Llama-3-8B on an H100, on paper
    scripts/measure/together.py --check docs/benchmarks.md                   # whether a document has that table

Needs nothing but Python. The shapes are those of values_of_setting.py. The trainings differ in rank, rate and optimizer. Each recipe
trains alone with `peft-tune train`, then all of them with one command, by turns; what is compared is the median time of a step, of
all but the first two. One after the other takes the sum of the steps alone. `same` says whether all training losses are equal.

On paper, a part of a step takes as long as its arithmetic or its bytes, as in roofline.py.
"""

import argparse
import json
import statistics
import subprocess
import sys

import roofline
from values_of_setting import arguments, model_and_data

# Rank, rate and optimizer of the trainings, by turns.
KINDS = [(8, "1e-3", "adamw"), (16, "5e-4", "adamw"), (4, "1e-4", "lion"), (32, "2e-4", "adamw")]


def write(folder, model, data, precision, rows, args, number):
    """The recipe of one training, and its path."""
    rank, rate, optimizer = KINDS[number % len(KINDS)]
    path = folder / f"t{number}.yaml"
    path.write_text(
        f"model: {model}\ndata: {{train: {data[0]}, held_out: {data[1]}}}\nprecision: {precision}\n"
        f"adapter: {{rank: {rank}, alpha: {2 * rank}}}\noptimizer: {{kind: {optimizer}, learning_rate: {rate}}}\n"
        f"batch: {{micro_batch: {rows}, sequence_length: {args.length}}}\n"
        f"training: {{length: {{steps: {args.steps}}}, evaluation_rows: 1}}\n"
    )
    return path


def train(args, folder, recipes):
    """Losses by training, and the median seconds of a step behind the first two."""
    run = [args.binary, "train", *map(str, recipes), "--output", "out", "--force", "--json", "--threads", str(args.threads),
           "--checkpoint-every", "1000000", "--at-a-time", "64"]
    said = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True).stdout
    losses, seconds = {}, []
    for line in map(json.loads, said.splitlines()):
        if line["event"] == "step":
            name = line.get("training", recipes[0].stem)
            losses.setdefault(name, []).append(line["loss"])
            if line["step"] > 2:
                seconds.append(line["seconds"])
    return losses, statistics.median(seconds)


def measured(args):
    work = args.work.resolve()
    model, data = model_and_data(args.shape, work)
    print("shape precision rows trainings alone_ms together_ms ratio same", flush=True)
    for precision in args.precisions.split(","):
        for rows in map(int, args.rows.split(",")):
            folder = work / f"{args.shape}-{precision}-{rows}"
            folder.mkdir(parents=True, exist_ok=True)
            counts = list(map(int, args.counts.split(",")))
            recipes = [write(folder, model, data, precision, rows, args, number) for number in range(max(counts))]
            found = {count: [] for count in counts}
            same = dict.fromkeys(counts, True)
            for _ in range(args.pairs):
                kinds = [train(args, folder, [recipes[kind]]) for kind in range(min(max(counts), len(KINDS)))]
                for count in counts:
                    losses, seconds = train(args, folder, recipes[:count])
                    alone = [kinds[number % len(KINDS)] for number in range(count)]
                    names = [f"t{number % len(KINDS)}" for number in range(count)]
                    same[count] &= all(losses[f"t{number}"] == alone[number][0][names[number]] for number in range(count))
                    found[count].append((sum(one for _, one in alone), seconds))
            for count, times in found.items():
                alone, seconds = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
                ratio = statistics.median(one / both for one, both in times)
                print(args.shape, precision, rows, count, f"{alone:.0f}", f"{seconds:.0f}", f"{ratio:.2f}", same[count], flush=True)


# Of the launches of a layer, those for the adapters of one training: x A of four groups, B of seven layers; B's two gradients of
# seven, A's of four groups, and what these add to dx.
ADAPTER_LAUNCHES = (4 + 7 + 2 * 7 + 4 + 7) * roofline.LAYERS
# Columns and depth of q, k, v, o, gate, up and down.
LAYERS = [(roofline.HIDDEN, roofline.HIDDEN), (roofline.KEYS, roofline.HIDDEN), (roofline.KEYS, roofline.HIDDEN),
          (roofline.HIDDEN, roofline.HIDDEN), (roofline.INNER, roofline.HIDDEN), (roofline.INNER, roofline.HIDDEN),
          (roofline.HIDDEN, roofline.INNER)]


def on_paper(tokens, trainings, args, precision):
    """Milliseconds of a step of so many trainings in the same passes, of `tokens` tokens each, by part."""
    all_tokens = tokens * trainings
    parts = {part.name: part for part in roofline.parts(all_tokens, args.length, args.rank, min(1024, tokens))}
    ms = {name: part.ms("H100") for name, part in parts.items()}
    peak, bandwidth = roofline.DEVICES["H100"]
    # Products of few rows leave multiprocessors idle: work in all, over that of the values.
    for name, turned in [("frozen weights, forward", False), ("frozen weights, gradient of inputs", True)]:
        flops = 0.0
        for columns, depth in LAYERS:
            columns, depth = (depth, columns) if turned else (columns, depth)
            flops += 2.0 * all_tokens * columns * depth * roofline.idle(all_tokens, columns, [1, 2, 4])
        made = flops * roofline.LAYERS / (roofline.LARGE * peak) / 1e9
        ms[name] = max(made, parts[name].bytes / (roofline.STREAM * bandwidth) / 1e9)
    if precision == "nf4":
        # Codes and constants read, 16 bits written, in both directions.
        values = sum(columns * depth for columns, depth in LAYERS) * roofline.LAYERS
        ms["dequantization"] = 2 * values * (0.5 + 4 / 64 + 2) / (roofline.STREAM * bandwidth) / 1e9
    # The head and the optimizer take trainings one after the other.
    of_one = {part.name: part.ms("H100") for part in roofline.parts(tokens, args.length, args.rank, min(1024, tokens))}
    for name in ["loss head, two products", "loss head, softmax and gradient", "optimizer, norm, rounding"]:
        ms[name] = trainings * of_one[name]
    ms["gaps between launches"] = (roofline.LAUNCHES + (trainings - 1) * ADAPTER_LAUNCHES) * roofline.GAP
    return ms


def paper(args):
    lines = ["| precision | trainings | ms in turn | ms together | tokens/s together | ratio | weights read, GB |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    values = sum(columns * depth for columns, depth in LAYERS) * roofline.LAYERS
    for precision in ["bf16", "nf4"]:
        read = 2 * values * (2 if precision == "bf16" else 0.5 + 4 / 64) / 1e9
        one = sum(on_paper(args.length, 1, args, precision).values())
        for trainings in [2, 4, 16]:
            together = sum(on_paper(args.length, trainings, args, precision).values())
            rate = trainings * args.length / together * 1e3
            lines.append(f"| {precision} | {trainings} | {trainings * one:.0f} | {together:.0f} | {rate:,.0f} | "
                         f"{trainings * one / together:.2f} | {trainings * read:.0f} to {read:.0f} |")
    return "\n".join(lines)


def main():
    if "--paper" in sys.argv or "--check" in sys.argv:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--paper", action="store_true")
        parser.add_argument("--check", metavar="FILE", help="fail where this document has not this table")
        parser.add_argument("--length", type=int, default=1024)
        parser.add_argument("--rank", type=int, default=16)
        args = parser.parse_args()
        text = paper(args)
        if not args.check:
            print(text)
        elif text not in open(args.check).read():
            sys.exit(f"{args.check} has another table than\n{text}")
        return
    parser = arguments(__doc__, work="target/measure/together", shape="135m", precisions="bf16,nf4", steps=6, length=256)
    parser.add_argument("--rows", default="1,2")
    parser.add_argument("--counts", default="2,4,8,16")
    parser.add_argument("--pairs", type=int, default=2)
    measured(parser.parse_args())


if __name__ == "__main__":
    main()
