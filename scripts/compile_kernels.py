"""Compiles every kernel of the program with NVRTC, as the program does it, for several architectures. Needs no GPU.

    python3 scripts/compile_kernels.py [--library libnvrtc.so.13] [--resources] [sm_80 sm_89 sm_90a ...]

A kernel that keeps registers in memory (spills) is a failure, and one whose products by warpgroups wait for each other (C75xx). --resources prints the registers of each. Without --library it takes the NVRTC of a
Python wheel (nvidia-cuda-nvrtc), or the one the loader finds.
"""

import ctypes
import glob
import os
import re
import site
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def library(named):
    found = [named] if named else []
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
        found += sorted(glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.*"))
    for path in [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            # It loads its builtins by name only: they are found where they are loaded already.
            for builtins in glob.glob(f"{os.path.dirname(path)}/libnvrtc-builtins.so.*"):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(path)
        except OSError:
            continue
    sys.exit("no libnvrtc: `pip install nvidia-cuda-nvrtc`, or name one with --library")


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


def compile_one(nvrtc, name, folder, text, architecture):
    """What is wrong, or None, and the resources of each kernel."""
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if created:
        return f"nvrtcCreateProgram: {created}", []
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"--include-path={path}" for path in (folder, f"{ROOT}/src/train/gpu")]
    options = [option.encode() for option in options]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        return log.value.decode(), []
    if not size.value:
        return "no machine code", []
    kernels = resources(log.value.decode())
    if not kernels:
        return "the assembler named no kernel", []
    waiting = re.findall(r"\(C75\d+\) .*", log.value.decode())
    spilling = [f"{kernel}: {spilled} bytes of registers are kept in memory" for kernel, _, spilled in kernels if spilled]
    return "\n".join(spilling + waiting) or None, kernels


def main():
    arguments, named = sys.argv[1:], None
    if "--library" in arguments:
        at = arguments.index("--library")
        named = arguments[at + 1]
        del arguments[at : at + 2]
    tells_resources = "--resources" in arguments
    if tells_resources:
        arguments.remove("--resources")
    nvrtc = library(named)
    prelude = open(f"{ROOT}/src/train/gpu/prelude.cuh").read()
    wrong = 0
    for path in sorted(glob.glob(f"{ROOT}/src/train/**/*.cu", recursive=True)):
        name = os.path.basename(path)
        text = f'{prelude}\n#line 1 "{name}"\n{open(path).read()}'
        for architecture in arguments or ["sm_80", "sm_89", "sm_90a"]:
            # Instructions that only Hopper has.
            if name.endswith("_hopper.cu") and architecture != "sm_90a":
                continue
            message, kernels = compile_one(nvrtc, name, os.path.dirname(path), text, architecture)
            print(f"{'FAIL' if message else 'ok  '} {name} {architecture}", flush=True)
            if message:
                print(message)
                wrong += 1
            for kernel, registers, spilled in kernels if tells_resources else []:
                print(f"     {kernel}: {registers} registers, {spilled} bytes spilled")
    sys.exit(1 if wrong else 0)


main()
