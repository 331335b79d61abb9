"""One table of peft-tune's and PEFT's timings.

    python3 gpu_table.py OURS.json PEFT.json [PEAK_TFLOPS]
"""

import json
import sys


def main():
    ours = json.load(open(sys.argv[1]))["bench"]
    theirs = json.load(open(sys.argv[2]))
    # Dense BF16 of an H200 through cuBLAS on random data is about 790; the data sheet says 989.
    peak = float(sys.argv[3]) if len(sys.argv) > 3 else 989.0
    print("| shape | precision | checkpointing | batch | tokens/s | PEFT, best | ratio | MFU % | peak GB | PEFT GB | ratio |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in ours:
        measured = row["measured"]
        key = (row["shape"], row["rows"], row["length"], row["checkpointing"])
        names = f"| {row['shape']} | {row['precision']} | {row['checkpointing']} | {row['rows']}x{row['length']} |"
        if not measured:
            print(names, row["message"], "| | | | | | |")
            continue
        same = [other for other in theirs if "tokens_per_s" in other
                and (other["shape"], other["rows"], other["length"], other["checkpointing"]) == key]
        own = f"{measured['tokens_per_s']:.0f}"
        mfu, peak_gb = 100 * measured["model_tflops"] / peak, measured["peak_bytes"] / 1e9
        if not same:
            print(names, f"{own} | | | {mfu:.1f} | {peak_gb:.2f} | | |")
            continue
        best = max(same, key=lambda other: other["tokens_per_s"])
        leanest = min(other["peak_bytes"] for other in same)
        print(names, f"{own} | {best['tokens_per_s']:.0f} ({best['mode']}) |"
              f" {measured['tokens_per_s'] / best['tokens_per_s']:.2f} | {mfu:.1f} | {peak_gb:.2f} |"
              f" {leanest / 1e9:.2f} | {measured['peak_bytes'] / leanest:.2f} |")


main()
