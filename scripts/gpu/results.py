#!/usr/bin/env python3
"""What `gpu/check.sh` left in a folder: its tables, or all of it in one file.

    scripts/gpu/results.py table FOLDER     # timings beside PEFT's, the table of the literature, and what was aimed at
    scripts/gpu/results.py kernels FOLDER   # kernels of the one step, and the products by themselves
    scripts/gpu/results.py json FOLDER      # puts everything into FOLDER/results.json

The folder may hold what several calls left, unpacked over each other. A part that was ended is told from what it had written.
"""

import glob
import json
import os
import sys

# Parts in the order in which they run, and the place in a file of the whole form where that is not the part's own name.
PARTS = ["attention", "step", "kernels", "products", "peft", "parity", "memory", "bench", "nf4", "literature", "graphs", "search",
         "profile", "reference", "peft_more", "search_3b", "sanitize"]
PLACES = {"step": "bench", "nf4": "bench", "reference": "parity"}
# Lines of a part's log that stay in the JSON.
LOG_LINES = 200

# Published for a model of 7B parameters on an A100 with 80 GB: tokens/s and GB, by row of the table.
PUBLISHED = {
    "all parameters, fp32": (1200, 48.2),
    "LoRA on bf16": (15000, 12.5),
    "LoRA on NF4": (30000, 9.8),
}


def read(folder, name):
    """What a part left, in one file or in one for each shape. None where it left nothing, or nothing whole."""
    found = None
    for path in sorted(glob.glob(os.path.join(folder, f"{name}.json")) + glob.glob(os.path.join(folder, f"{name}.*.json"))):
        try:
            with open(path) as file:
                content = json.load(file)
        except ValueError:
            continue
        if isinstance(content, dict):
            content = content.get(PLACES.get(name, name), content)
        found = found + content if isinstance(found, list) and isinstance(content, list) else content
    return found


def timings(parts):
    """Our timings, each setting once: the last one of it."""
    rows = [row for name in ("bench", "nf4", "step") for row in parts.get(name) or []]
    return list({key(row): row for row in rows}.values())


def theirs_of(parts):
    return [*(parts.get("peft_more") or []), *(parts.get("peft") or [])]


def key(row):
    return row["shape"], row["precision"], row["rows"], row["length"], row["checkpointing"]


def beside(theirs, row):
    """PEFT on the same setting: (the fastest of its modes, bytes of the leanest), or None."""
    same = [other for other in theirs or [] if other.get("tokens_per_s") and other.get("peak_bytes") and key(other) == key(row)]
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
    bench = timings(parts)
    measured = [(row["measured"], row, f"{row['shape']} {row['precision']} {row['rows']}x{row['length']} {row['checkpointing']}")
                for row in bench if row["measured"]]
    pairs = [(own, beside(theirs_of(parts), row), name) for own, row, name in measured]
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
    search = parts.get("search_3b")
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


def print_timings(bench, theirs):
    print("| shape | precision | checkpointing | batch | tokens/s | PEFT, best | ratio | MFU % | peak GB | predicted GB | PEFT GB | ratio |"
          " switch s |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in bench:
        measured = row["measured"]
        names = f"| {row['shape']} | {row['precision']} | {row['checkpointing']} | {row['rows']}x{row['length']} |"
        if not measured:
            print(names, row["message"], "| | | | | | | | |")
            continue
        mfu = measured.get("mfu")
        mfu = "" if mfu is None else f"{100 * mfu:.1f}"
        predicted = measured.get("predicted_bytes")
        predicted = "" if predicted is None else f"{predicted / 1e9:.2f}"
        speed = other_speed = other_memory = memory = ""
        other = beside(theirs, row)
        if other:
            best, least = other
            other_speed = f"{best['tokens_per_s']:.0f} ({best['mode']})"
            speed = f"{measured['tokens_per_s'] / best['tokens_per_s']:.2f}"
            other_memory, memory = f"{least / 1e9:.2f}", f"{measured['peak_bytes'] / least:.2f}"
        print(names, f"{measured['tokens_per_s']:.0f} | {other_speed} | {speed} | {mfu} | {measured['peak_bytes'] / 1e9:.2f} |"
              f" {predicted} | {other_memory} | {memory} | {measured['switch_s']:.2f} |")


def print_peft(rows):
    """Every mode of PEFT, also those that could not run."""
    print("\n| PEFT | precision | checkpointing | batch | mode | tokens/s | peak GB | |")
    print("|---|---|---|---|---|---:|---:|---|")
    for row in rows:
        if not row.get("mode"):
            continue
        names = f"| {row['shape']} | {row['precision']} | {row['checkpointing']} | {row['rows']}x{row['length']} | {row['mode']} |"
        if not row.get("tokens_per_s"):
            message = " ".join(row.get("message", "").split())[:100]
            print(names, "| |", message.replace("|", "/"), "|")
            continue
        peak = f"{row['peak_bytes'] / 1e9:.2f}" if row.get("peak_bytes") else ""
        best = beside(rows, row)
        marks = [] if not best else ["fastest"] * (best[0] is row) + ["leanest"] * (best[1] == row["peak_bytes"])
        print(names, f"{row['tokens_per_s']:.0f} | {peak} | {', '.join(marks)} |")


def print_kernels(content):
    gpu = ((content or {}).get("profile") or {}).get("gpu") or {}
    if not gpu.get("kernels"):
        print("\nno kernels are in the profile of the step: CUPTI is missing")
        return
    print(f"\nA step of {1e3 * gpu['seconds'] / max(gpu['steps'], 1):.1f} ms, idle for {100 * gpu['idle_share']:.1f}% of it.")
    print("\n| kernel | op | calls | ms a step | share % |")
    print("|---|---|---:|---:|---:|")
    for kernel in gpu["kernels"][:40]:
        print(f"| {kernel['name'][:80]} | {kernel['op']} | {kernel['calls']:.0f} | {1e3 * kernel['seconds']:.3f} |"
              f" {100 * kernel['share']:.1f} |")


def print_products(content):
    print(f"\n| product of {content['shape']} {content['batch']} | rows x inner x columns | ms | TFLOP/s | GB/s | of the nearer ceiling % |")
    print("|---|---|---:|---:|---:|---:|")
    square = content["square"]
    print(f"| ceiling of products | {square} x {square} x {square} | | {content['square_flops_per_s'] / 1e12:.1f} | | |")
    print(f"| ceiling of copies | | | | {content['copy_bytes_per_s'] / 1e9:.0f} | |")
    for row in content["timed"]:
        print(f"| {row['product']} | {row['rows']} x {row['inner']} x {row['columns']} | {1e3 * row['seconds']:.3f} |"
              f" {row['flops_per_s'] / 1e12:.1f} | {row['bytes_per_s'] / 1e9:.0f} | {100 * row['of_ceiling']:.0f} |")


def print_literature(rows):
    print("\n| 7B | optimizer | checkpointing | batch | tokens/s | published | peak GB | published | did not fit |")
    print("|---|---|---|---|---:|---:|---:|---:|---|")
    for row in rows:
        speed, memory = PUBLISHED.get(row["name"], ("", ""))
        over = ", ".join(
            f"{one['optimizer']} {one['checkpointing']}"
            + (f" ({one['predicted_bytes'] / 1e9:.0f} GB)" if one["predicted_bytes"] else "")
            for one in row["passed_over"])
        batch = f"{row['rows']}x{row['length']}"
        measured = row["measured"]
        if not measured:
            print(f"| {row['name']} | nothing fits | | {batch} | | {speed} | | {memory} | {over} |")
            continue
        print(f"| {row['name']} | {row['optimizer']} | {row['checkpointing']} | {batch} | {measured['tokens_per_s']:.0f} | {speed} |"
              f" {measured['peak_bytes'] / 1e9:.1f} | {memory} | {over} |")


def print_graphs(rows):
    print("\n| CUDA graphs | precision | batch | launched tokens/s | replayed | ratio | launched GB | replayed GB | losses differ by | passes replayed | updates |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        launched, replayed = row["launched"], row["replayed"]
        names = f"| {row['shape']} | {row['precision']} | {row['rows']}x{row['length']} |"
        if not launched or not replayed:
            print(names, row["message"], "| | | | | | | |")
            continue
        print(names, f"{launched['tokens_per_s']:.0f} | {replayed['tokens_per_s']:.0f} | {replayed['tokens_per_s'] / launched['tokens_per_s']:.2f} |"
              f" {launched['peak_bytes'] / 1e9:.2f} | {replayed['peak_bytes'] / 1e9:.2f} | {row['difference']:.1e} | {replayed['replayed_passes']} |"
              f" {replayed['replayed_updates']} |")


def print_attention(layers):
    """Each form, then PyTorch's where they were timed, with the speed of both passes over that of PyTorch's fastest."""
    print("\n| attention | heads | batch | form | forward ms | TFLOP/s | backward ms | TFLOP/s | together, over PyTorch's best |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|")
    for layer in layers:
        names = f"| {layer['shape']} | {layer['query_heads']}/{layer['key_heads']} of {layer['head_dim']} | {layer['rows']}x{layer['length']} |"
        if layer["message"]:
            print(names, layer["message"], "| | | | | |")
            continue
        theirs = [one["forward_s"] + one["backward_s"] for one in layer.get("sdpa", [])]
        for form in [*layer["forms"], *layer.get("sdpa", [])]:
            ratio = f"{min(theirs) / (form['forward_s'] + form['backward_s']):.2f}" if theirs else ""
            print(names, f"{form['form']} | {1e3 * form['forward_s']:.3f} | {form['forward_flops_per_s'] / 1e12:.0f} |"
                  f" {1e3 * form['backward_s']:.3f} | {form['backward_flops_per_s'] / 1e12:.0f} | {ratio} |")


def print_targets(lines):
    print("\n| measure | aim | worst | of | setting | met |")
    print("|---|---|---:|---:|---|---|")
    for line in lines:
        value = "not measured" if line["value"] is None else line["value"]
        met = {None: "", True: "yes", False: "no"}[line["met"]]
        print(f"| {line['measure']} | {line['aim']} | {value} | {line['of']} | {line['setting'] or ''} | {met} |")


def table(folder):
    parts = {name: read(folder, name) for name in PARTS}
    print_timings(timings(parts), theirs_of(parts))
    if theirs_of(parts):
        print_peft(theirs_of(parts))
    if parts["attention"]:
        print_attention(parts["attention"])
    kernels(folder)
    if parts["literature"]:
        print_literature(parts["literature"])
    if parts["graphs"]:
        print_graphs(parts["graphs"])
    print_ended(list(statuses(folder)), parts)
    print_targets(targets(parts))


def print_ended(ran, parts):
    """Rows that a part had printed when it was ended, where it left no results of its own."""
    for part in ran:
        rows = [line for line in part["log"] if line.startswith("|")]
        if part["status"] not in (0, 1) and parts.get(part["part"]) is None and rows:
            print(f"\nWhat {part['part']} had when it ended ({part['status']}):\n")
            print("\n".join(rows))


def kernels(folder):
    content, products = read(folder, "kernels"), read(folder, "products")
    if content is not None:
        print_kernels(content)
    if products is not None:
        print_products(products)


def statuses(folder):
    """What became of each part that ran: its exit status, `running` where nobody saw its end, `ended`, or `not begun`."""
    for path in glob.glob(os.path.join(folder, "*.status")):
        with open(path) as file:
            status, seconds, began = file.read().rstrip("\n").split("\t")
        name = os.path.basename(path)[:-len(".status")]
        log = os.path.join(folder, f"{name}.log")
        lines = open(log, errors="replace").read().splitlines() if os.path.exists(log) else []
        yield {"part": name, "status": int(status) if status.isdigit() else status, "seconds": int(seconds), "began": int(began),
               "log": lines[-LOG_LINES:]}


def merge(folder):
    results = {"parts": sorted(statuses(folder), key=lambda part: (part["began"], PARTS.index(part["part"]))), "device": None}
    device = os.path.join(folder, "device.csv")
    if os.path.exists(device):
        lines = open(device).read().splitlines()
        results["device"] = lines[1] if len(lines) > 1 else None
    ran = {part["part"] for part in results["parts"]}
    for name in PARTS:
        content = read(folder, name) if name in ran else None
        if content is not None:
            results[name] = content
    results["targets"] = targets(results)
    path = os.path.join(folder, "results.json")
    with open(path + ".part", "w") as file:
        json.dump(results, file, indent=1)
    os.replace(path + ".part", path)
    failed = [f"{part['part']} ({part['status']})" for part in results["parts"] if part["status"]]
    print(f"{path}: {len(ran)} parts, failed: {', '.join(failed) or 'none'}")


def main():
    wanted, folder = sys.argv[1:]
    {"table": table, "kernels": kernels, "json": merge}[wanted](folder)


main()
