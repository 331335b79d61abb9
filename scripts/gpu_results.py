"""Puts what `gpu-check.sh` left in a folder into one file, results.json there.

    python3 gpu_results.py FOLDER
"""

import json
import os
import sys

from gpu_targets import read, targets


def main():
    folder = sys.argv[1]
    results = {"parts": [], "device": None}
    with open(os.path.join(folder, "parts.tsv")) as file:
        for line in file:
            name, status, seconds = line.rstrip("\n").split("\t")
            results["parts"].append({"part": name, "status": int(status), "seconds": int(seconds)})
    device = os.path.join(folder, "device.csv")
    if os.path.exists(device):
        lines = open(device).read().splitlines()
        results["device"] = lines[1] if len(lines) > 1 else None
    ran = {part["part"] for part in results["parts"]}
    for name in ["parity", "reference", "memory", "search", "profile", "attention", "bench", "graphs", "literature", "peft"]:
        # A file of an earlier call is not this one's result.
        content = read(folder, name) if name in ran else None
        if content is not None:
            results[name] = content
    results["targets"] = targets(results)
    with open(os.path.join(folder, "results.json"), "w") as file:
        json.dump(results, file, indent=1)
    failed = [part["part"] for part in results["parts"] if part["status"]]
    print(f"{os.path.join(folder, 'results.json')}: {len(ran)} parts, failed: {', '.join(failed) or 'none'}")


main()
