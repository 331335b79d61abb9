"""The tables of a folder of `gpu-check.sh`: timings beside PEFT's, the table of the literature, and what was aimed at.

    python3 gpu_table.py FOLDER
"""

import sys

from gpu_targets import PUBLISHED, beside, read_all, targets


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


def main():
    parts = read_all(sys.argv[1])
    print_timings(parts["bench"] or [], parts["peft"])
    if parts["attention"]:
        print_attention(parts["attention"])
    if parts["literature"]:
        print_literature(parts["literature"])
    if parts["graphs"]:
        print_graphs(parts["graphs"])
    print_targets(targets(parts))


main()
