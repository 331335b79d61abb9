"""Compiles kernels with NVRTC as the program does it. Needs no GPU."""

import ctypes
import glob
import os
import site
import sys
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("PEFT_TUNE_NVRTC") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "peft-tune", "nvrtc"
)


class Compiled(NamedTuple):
    failed: bool
    log: str
    ptx: str
    machine_code: bytes


def library(named=None):
    """NVRTC: the one that is named, of a Python wheel (nvidia-cuda-nvrtc), of compile-kernels.sh, or which the loader finds."""
    found = [named] if named else []
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path, CACHE]:
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


def compiled(nvrtc, path, architecture):
    """A kernel file for an architecture: machine code of `sm_90a`, PTX also of `compute_90a`."""
    name = os.path.basename(path)
    prelude = open(f"{ROOT}/crates/kernels/src/gpu/prelude.cuh").read()
    text = f'{prelude}\n#line 1 "{name}"\n{open(path).read()}'
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if created:
        return Compiled(True, f"nvrtcCreateProgram: {created}", "", b"")
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"--include-path={folder}" for folder in (os.path.dirname(path), f"{ROOT}/crates/kernels/src/gpu")]
    options = [option.encode() for option in options]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))

    def read(what):
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        held = ctypes.create_string_buffer(size.value)
        if size.value:
            getattr(nvrtc, f"nvrtcGet{what}")(program, held)
        return held.raw

    texts = [read(what).rstrip(b"\0").decode() for what in ("ProgramLog", "PTX")]
    result = Compiled(bool(failed), *texts, read("CUBIN"))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return result
