"""Compiles every kernel of the program with NVRTC, as the program does it, for several architectures. Needs no GPU.

    python3 scripts/compile_kernels.py [--library libnvrtc.so.13] [sm_80 sm_89 sm_90 ...]

Without --library it takes the NVRTC of a Python wheel (nvidia-cuda-nvrtc), or the one the loader finds.
"""

import ctypes
import glob
import os
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


def compile_one(nvrtc, name, text, architecture):
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if created:
        return f"nvrtcCreateProgram: {created}"
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        return log.value.decode()
    return None if size.value else "no machine code"


def main():
    arguments, named = sys.argv[1:], None
    if "--library" in arguments:
        at = arguments.index("--library")
        named = arguments[at + 1]
        del arguments[at : at + 2]
    nvrtc = library(named)
    prelude = open(f"{ROOT}/src/train/gpu/prelude.cuh").read()
    wrong = 0
    for path in sorted(glob.glob(f"{ROOT}/src/train/**/*.cu", recursive=True)):
        name = os.path.basename(path)
        text = f'{prelude}\n#line 1 "{name}"\n{open(path).read()}'
        for architecture in arguments or ["sm_80", "sm_89", "sm_90"]:
            message = compile_one(nvrtc, name, text, architecture)
            print(f"{'FAIL' if message else 'ok  '} {name} {architecture}", flush=True)
            if message:
                print(message)
                wrong += 1
    sys.exit(1 if wrong else 0)


main()
