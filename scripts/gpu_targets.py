"""What the timings in a folder of `gpu-check.sh` say of each aim: one line each, met or not, or not measured.

Imported by gpu_table.py and gpu_results.py.
"""

import json
import os

# Published for a model of 7B parameters on an A100 with 80 GB: tokens/s and GB, by row of the table.
PUBLISHED = {
    "all parameters, fp32": (1200, 48.2),
    "LoRA on bf16": (15000, 12.5),
    "LoRA on NF4": (30000, 9.8),
}


def read(folder, name):
    """What a part left; its own place in a file of the whole form. None where it left nothing."""
    path = os.path.join(folder, f"{name}.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        content = json.load(file)
    return content.get(name, content) if isinstance(content, dict) else content


def read_all(folder):
    return {name: read(folder, name) for name in ["attention", "bench", "graphs", "literature", "peft", "search"]}


def key(row):
    return row["shape"], row["precision"], row["rows"], row["length"], row["checkpointing"]


def beside(theirs, row):
    """PEFT on the same setting: (the fastest, bytes of the leanest), or None."""
    same = [other for other in theirs or [] if "tokens_per_s" in other and key(other) == key(row)]
    if not same:
        return None
    return max(same, key=lambda other: other["tokens_per_s"]), min(other["peak_bytes"] for other in same)


def line(measure, aim, values, worst, is_met, show):
    """`values` are (value, setting); the worst decides."""
    if not values:
        return dict(measure=measure, aim=aim, value=None, setting=None, met=None, of=0)
    value, setting = worst(values, key=lambda pair: pair[0])
    return dict(measure=measure, aim=aim, value=show(value), setting=setting, met=is_met(value), of=len(values))


def targets(parts):
    bench = parts.get("bench") or []
    measured = [(row["measured"], row, f"{row['shape']} {row['precision']} {row['rows']}x{row['length']} {row['checkpointing']}")
                for row in bench if row["measured"]]
    pairs = [(own, beside(parts.get("peft"), row), name) for own, row, name in measured]
    pairs = [(own, other, name) for own, other, name in pairs if other]
    plain = lambda digits: lambda value: round(value, digits)
    lines = [
        line("tokens/s over PEFT's best", "at least 1.5",
             [(own["tokens_per_s"] / best["tokens_per_s"], name) for own, (best, _), name in pairs],
             min, lambda value: value >= 1.5, plain(2)),
        line("peak memory over PEFT's least", "at most 0.7",
             [(own["peak_bytes"] / least, name) for own, (_, least), name in pairs],
             max, lambda value: value <= 0.7, plain(2)),
        line("MFU of llama-3.1-8b, bf16, 2x4096 (the better checkpointing)", "at least 0.45",
             [(own["mfu"], name) for own, row, name in measured if own.get("mfu") is not None
              and key(row)[:4] == ("llama-3.1-8b", "bf16", 2, 4096)],
             max, lambda value: value >= 0.45, plain(3)),
    ]
    # The first setting on a base model compiles kernels and chooses algorithms: once, not from trial to trial.
    seen, later = set(), []
    for own, row, name in measured:
        base = (row["shape"], row["precision"])
        if base in seen:
            later.append((own["switch_s"], name))
        seen.add(base)
    search = parts.get("search")
    graphs = [(row, f"{row['shape']} {row['precision']} {row['rows']}x{row['length']}")
              for row in parts.get("graphs") or [] if row["launched"] and row["replayed"]]
    lines += [
        line("seconds from trial to trial on a base model that is loaded", "under 1", later,
             max, lambda value: value < 1, plain(3)),
        line("predicted memory off by", "at most 0.02",
             [(abs(own["predicted_bytes"] / own["peak_bytes"] - 1), name) for own, _, name in measured
              if own.get("predicted_bytes") and own["peak_bytes"]],
             max, lambda value: value <= 0.02, plain(4)),
        line("bytes that steady steps ask the driver for", "0",
             [(own["reserved_growth_bytes"], name) for own, _, name in measured if own.get("reserved_growth_bytes") is not None],
             max, lambda value: value == 0, plain(0)),
        line("seconds of a search of 60 trials, 3B parameters", "at most 900",
             [(search["seconds"], f"{search['trials']} trials")] if search and search["trials"] >= 60 else [],
             max, lambda value: value <= 900, plain(0)),
        line("losses of replayed steps off those of launched ones, fp32", "0",
             [(row["difference"], name) for row, name in graphs if row["precision"] == "fp32" and row["replayed"]["replayed_passes"]],
             max, lambda value: value == 0, lambda value: value),
        line("tokens/s of replayed steps over launched ones", "at least 1",
             [(row["replayed"]["tokens_per_s"] / row["launched"]["tokens_per_s"], name) for row, name in graphs],
             min, lambda value: value >= 1, plain(2)),
    ]
    return lines
