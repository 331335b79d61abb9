#!/usr/bin/env python3
"""Compiles every kernel of the program with NVRTC, as the program does it, for several architectures. Needs no GPU.

    scripts/kernels/compile_kernels.py [--library libnvrtc.so.13] [--resources] [sm_80 sm_86 sm_89 sm_90a ...]

A kernel that keeps registers in memory (spills) is a failure, and one whose products by warpgroups wait for each other
(C75xx). So is one of attention in whose machine code something no longer runs beside what it should (overlaps.py).
--resources prints the registers of each and what overlaps. NVRTC and a disassembler come from Python wheels of 100 MB, which
are installed into a cache folder at the first call; exit status 3 says that they cannot be had.
"""

import argparse
import ctypes
import glob
import os
import re
import site
import subprocess
import sys
from typing import NamedTuple

import overlaps
import sass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WHEEL = "nvidia-cuda-nvrtc==13.0.88"
CACHE = os.environ.get("PEFT_TUNE_NVRTC") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "peft-tune", "nvrtc"
)
MISSING = 3
# Files with instructions that only these have, or tiles that are for these only.
ONLY = {"_hopper.cu": ["sm_90a"], "_ada.cu": ["sm_86", "sm_89"]}


class Compiled(NamedTuple):
    failed: bool
    log: str
    ptx: str
    machine_code: bytes


def sources(pattern):
    """Files below the folders of source code whose name fits, in order."""
    return sorted(path for top in ("src", "crates") for path in glob.glob(f"{ROOT}/{top}/**/{pattern}", recursive=True))


def source(name):
    """The one file of this name."""
    (path,) = sources(name)
    return path


def wheels():
    """NVRTC's libraries in the Python at hand and in the cache folder."""
    folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path, CACHE]
    return [path for folder in folders for path in sorted(glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.*"))]


def nvrtc(named=None):
    """NVRTC: the one that is named, of a Python wheel, or which the loader finds; else its wheel is installed."""
    for attempt in ("as it is", "installed"):
        for path in [*([named] if named else []), *wheels(), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
            try:
                # It loads its builtins by name only: they are found where they are loaded already.
                for builtins in glob.glob(f"{os.path.dirname(path)}/libnvrtc-builtins.so.*"):
                    ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(path)
            except OSError:
                continue
        if attempt == "as it is":
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", CACHE, WHEEL]
            subprocess.run(pip, stdout=sys.stderr, check=False)
    print(f"no libnvrtc: `pip install {WHEEL}`, or name one with --library", file=sys.stderr)
    sys.exit(MISSING)


def compiled(library, path, architecture):
    """A kernel file for an architecture: machine code of `sm_90a`, PTX also of `compute_90a`."""
    name = os.path.basename(path)
    prelude = open(source("prelude.cuh")).read()
    text = f'{prelude}\n#line 1 "{name}"\n{open(path).read()}'
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if created:
        return Compiled(True, f"nvrtcCreateProgram: {created}", "", b"")
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"--include-path={folder}" for folder in sorted({os.path.dirname(header) for header in sources("*.cuh")})]
    options = [option.encode() for option in options]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))

    def read(what):
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        held = ctypes.create_string_buffer(size.value)
        if size.value:
            getattr(library, f"nvrtcGet{what}")(program, held)
        return held.raw

    texts = [read(what).rstrip(b"\0").decode() for what in ("ProgramLog", "PTX")]
    result = Compiled(bool(failed), *texts, read("CUBIN"))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return result


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


def overlapping(disassembler, program):
    """What the kernels of attention in it do not overlap, and what they do."""
    wrong, right = [], []
    for kernel, instructions in sass.kernels(disassembler, program.machine_code).items():
        if overlaps.of_attention(kernel):
            lost, kept = overlaps.lost(kernel, instructions)
            wrong, right = wrong + lost, right + kept
    return wrong, right


def check(program):
    """What is wrong, or None, and the resources of each kernel."""
    if program.failed:
        return program.log, []
    if not program.machine_code:
        return "no machine code", []
    kernels = resources(program.log)
    if not kernels:
        return "the assembler named no kernel", []
    waiting = re.findall(r"\(C75\d+\) .*", program.log)
    spilling = [f"{kernel}: {spilled} bytes of registers are kept in memory" for kernel, _, spilled in kernels if spilled]
    return "\n".join(spilling + waiting) or None, kernels


def compiles(library, disassembler, path, architecture, prints_resources):
    """Prints whether a kernel file does, as it should."""
    name = os.path.basename(path)
    program = compiled(library, path, architecture)
    message, kernels = check(program)
    lost, kept = overlapping(disassembler, program) if kernels and name.startswith("attention") else ([], [])
    message = "\n".join([*([message] if message else []), *lost])
    print(f"{'FAIL' if message else 'ok  '} {name} {architecture}", flush=True)
    if message:
        print(message)
    if prints_resources:
        for kernel, registers, spilled in kernels:
            print(f"     {kernel}: {registers} registers, {spilled} bytes spilled")
        for text in kept:
            print(f"     {text}")
    return not message


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="the file of NVRTC")
    parser.add_argument("--resources", action="store_true")
    parser.add_argument("architectures", nargs="*", default=["sm_80", "sm_86", "sm_89", "sm_90a"])
    arguments = parser.parse_args()
    library, kernel_files = nvrtc(arguments.library), sources("*.cu")
    disassembler = sass.disassembler(CACHE)
    if not disassembler:
        print(f"no nvdisasm: `pip install {sass.WHEEL}`", file=sys.stderr)
        sys.exit(MISSING)
    if not kernel_files:
        sys.exit("no kernels were found")
    wrong = 0
    for path in kernel_files:
        name = os.path.basename(path)
        for architecture in arguments.architectures:
            if not any(name.endswith(end) and architecture not in ONLY[end] for end in ONLY):
                wrong += not compiles(library, disassembler, path, architecture, arguments.resources)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
