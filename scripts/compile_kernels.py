"""Compiles every kernel of the program with NVRTC, as the program does it, for several architectures. Needs no GPU.

    python3 scripts/compile_kernels.py [--library libnvrtc.so.13] [--resources] [sm_80 sm_89 sm_90a ...]

A kernel that keeps registers in memory (spills) is a failure, and one whose products by warpgroups wait for each other
(C75xx). --resources prints the registers of each.
"""

import argparse
import glob
import os
import re
import sys

import nvrtc


def resources(log):
    """(kernel, registers, bytes of spilling stores) of each kernel, as the assembler tells them."""
    found = []
    for entry in re.split(r"Compiling entry function '", log)[1:]:
        kernel = entry[: entry.index("'")]
        spilled = re.search(r"(\d+) bytes spill stores", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        if not (spilled and registers):
            sys.exit(f"{kernel}: the assembler told no registers:\n{entry}")
        found.append((kernel, int(registers[1]), int(spilled[1])))
    return found


def check(compiled):
    """What is wrong, or None, and the resources of each kernel."""
    if compiled.failed:
        return compiled.log, []
    if not compiled.machine_code:
        return "no machine code", []
    kernels = resources(compiled.log)
    if not kernels:
        return "the assembler named no kernel", []
    waiting = re.findall(r"\(C75\d+\) .*", compiled.log)
    spilling = [f"{kernel}: {spilled} bytes of registers are kept in memory" for kernel, _, spilled in kernels if spilled]
    return "\n".join(spilling + waiting) or None, kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="the file of NVRTC")
    parser.add_argument("--resources", action="store_true")
    parser.add_argument("architectures", nargs="*", default=["sm_80", "sm_89", "sm_90a"])
    arguments = parser.parse_args()
    library = nvrtc.library(arguments.library)
    wrong = 0
    for path in sorted(glob.glob(f"{nvrtc.ROOT}/crates/**/*.cu", recursive=True)):
        name = os.path.basename(path)
        for architecture in arguments.architectures:
            # Instructions that only Hopper has.
            if name.endswith("_hopper.cu") and architecture != "sm_90a":
                continue
            message, kernels = check(nvrtc.compiled(library, path, architecture))
            print(f"{'FAIL' if message else 'ok  '} {name} {architecture}", flush=True)
            if message:
                print(message)
                wrong += 1
            for kernel, registers, spilled in kernels if arguments.resources else []:
                print(f"     {kernel}: {registers} registers, {spilled} bytes spilled")
    sys.exit(1 if wrong else 0)


main()
