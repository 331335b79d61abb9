#!/usr/bin/env python3
"""Errors of the predictions for other stacks, by source: `stacks.py ROWS.json PREDICTED.jsonl [--csv OUT.csv] [--rows SOURCE]`.

PREDICTED.jsonl is what `cargo run --release --example published -- ROWS.json MODELS.json` prints. Sources that constants
were chosen on are marked; all others are held out.
"""

import csv
import datetime
import json
import sys

CALIBRATED = {
    "fms-a100",
    "fitcheck-t4 (calibration)",
    "ms-swift-batch",
    "ms-swift-fa-gc",
    "ms-swift-ga",
    "ms-swift-quant",
    "ms-swift-rank",
    "qwen1-readme (1.8B)",
    "torchtune-readme-flags",
    "torchtune-readme-models",
}

# What a row of the CSV says of the setting: as it was predicted, and as its source says it.
PREDICTED = ["stack", "parameters", "device", "weights"]
MEASURED = ["model", "method", "num_gpus", "rank", "micro_batch", "grad_accum", "sequence_length", "checkpointing"]


def field(value):
    """A value for readers that split lines at commas."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value).replace(",", ";")


def group(row):
    source = row["source"]
    if source == "fitcheck-t4":
        return f"{source} ({'holdout' if row['extra']['split'] == 'holdout' else 'calibration'})"
    if source == "qwen1-readme":
        return f"{source} ({'1.8B' if '1_8B' in row['model'] else 'larger'})"
    return source


def measured(row):
    extra = row["extra"] or {}
    tensors = process = None
    value = row["peak_memory_gib"]
    metric = (row["memory_metric"] or "").lower()
    if value is None and row["peak_memory_gb"] is not None:
        value = row["peak_memory_gb"]
        if row["source"] == "qwen1-readme":
            value /= row["num_gpus"]
        elif row["memory_unit"] == "GB as printed" and "torch.cuda" in metric:
            value *= 1e9 / 2**30
    if "max_memory_allocated" in metric or "peak memory" in metric and "reserved" not in metric:
        tensors = value
    else:
        process = value
    if extra.get("process_mib"):
        process = extra["process_mib"] / 1024
    if extra.get("nvidia_smi_mib"):
        process = extra["nvidia_smi_mib"] / 1024
    return tensors, process, row["tokens_per_s"]


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    rank = [0.0] * len(values)
    i = 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            rank[order[k]] = (i + j) / 2
        i = j + 1
    return rank


def spearman(pairs):
    if len(pairs) < 3:
        return None
    a, b = (ranks(list(side)) for side in zip(*pairs))
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    top = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b))
    low = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return top / low if low else None


def shown(value, form="{:.1%}"):
    return "" if value is None else form.format(value)


def main():
    rows = {row["id"]: row for row in json.load(open(sys.argv[1]))}
    lines = [json.loads(line) for line in open(sys.argv[2])]
    wanted = sys.argv[sys.argv.index("--rows") + 1] if "--rows" in sys.argv else None
    table, detail = {}, []
    for line in lines:
        row = rows[line["id"]]
        if line["peak_tensors_gib"] is None:
            table.setdefault(group(row), {"none": 0})["none"] = table.get(group(row), {}).get("none", 0) + 1
            continue
        entry = table.setdefault(group(row), {})
        real = measured(row)
        mine = (line["peak_tensors_gib"], line["peak_process_gib"], line["tokens_per_s"])
        errors = []
        for name, was, said in zip(("tensors", "process", "speed"), real, mine):
            error = said / was - 1 if was and said else None
            errors.append(error)
            if error is not None:
                entry.setdefault(name, []).append((was, said))
        if row["outcome"] in ("ok", "oom") and line["fits"] is not None and row["gpu"]:
            right = line["fits"] == (row["outcome"] == "ok")
            entry.setdefault("verdicts", []).append((right, line["fits"] and row["outcome"] == "oom"))
        detail.append((row, real, mine, errors))
    if wanted:
        for row, real, mine, errors in detail:
            if row["source"].startswith(wanted):
                extra = row["extra"] or {}
                what = extra.get("framework") or extra.get("label") or extra.get("step") or ""
                numbers = " ".join(
                    f"{shown(was, '{:.2f}'):>8} {shown(said, '{:.2f}'):>8} {shown(error, '{:+.1%}'):>7} |"
                    for was, said, error in zip(real, mine, errors)
                )
                print(
                    f"{row['id'][-4:]} {row['model'].split('/')[-1][:14]:14} {row['method']:5} b{row['micro_batch']} "
                    f"s{row['sequence_length']} n{row['num_gpus']} {str(row['attention'])[:5]} {what[:26]:26} {numbers}"
                )
    print(f"{'source':32} {'rows':>4} {'tensors':>15} {'process':>15} {'speed':>15} rank verdicts")
    for source, entry in sorted(table.items()):
        parts = []
        for name in ("tensors", "process", "speed"):
            errors = [abs(said / was - 1) for was, said in entry.get(name, [])]
            parts.append(f"{shown(quantile(errors, 0.5)):>7} {shown(quantile(errors, 0.9)):>7}")
        verdicts = entry.get("verdicts", [])
        mark = "*" if source in CALIBRATED else " "
        count = max((len(entry.get(name, [])) for name in ("tensors", "process", "speed")), default=0)
        right = f"{sum(r for r, _ in verdicts)}/{len(verdicts)}, {sum(f for _, f in verdicts)} false fits"
        print(f"{mark}{source:31} {count:4} {' '.join(parts)} {shown(spearman(entry.get('speed', [])), '{:.2f}'):>5} {right}")
    if "--csv" in sys.argv:
        with open(sys.argv[sys.argv.index("--csv") + 1], "w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            command = "just published memory_throughput.json models.json"
            head = ["machine", "date", "command", "id", "source", "calibrated"]
            for name in ("tensors_gib", "process_gib", "tokens_per_s"):
                head += [f"published_{name}", f"predicted_{name}"]
            out.writerow(head + PREDICTED + MEASURED)
            lines = {line["id"]: line for line in lines}
            for row, real, mine, _ in detail:
                out.writerow(
                    ["any", datetime.date.today(), command, row["id"], row["source"], group(row) in CALIBRATED]
                    + [f"{value:.4g}" if value is not None else "" for pair in zip(real, mine) for value in pair]
                    + [field(lines[row["id"]][name]) for name in PREDICTED]
                    + [field(row[name]) for name in MEASURED]
                )


if __name__ == "__main__":
    main()
