"""Facts of this Python: versions of what a trial is trained with, and the GPUs that PyTorch sees."""

import importlib.metadata
import platform
import re
import sys

from .gpu_load import why_unwatched

#: Versions that the worker is written for and tested with: the least, and the first that is too new.
VERSIONS = {
    "torch": ("2.9", None),
    "transformers": ("5.23", "6"),
    "peft": ("0.21", "1"),
    "trl": ("1.16", "2"),
    "accelerate": ("1.10", "2"),
    "datasets": ("4.7", None),
}

#: Other ranges of a process that trains with unsloth, which takes no newer versions of some.
VERSIONS_FOR_UNSLOTH = {
    "unsloth": ("2026.10.9", "2027"),
    "transformers": ("5.17", "6"),
    "trl": ("1.15", "2"),
}

#: Packages that some values alone need.
OPTIONAL = (
    "bitsandbytes",
    "deepspeed",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "kernels",
    "liger-kernel",
    "schedulefree",
)


def ranges(backend):
    """The ranges of all packages that a backend needs."""
    return VERSIONS if backend != "unsloth" else {"unsloth": VERSIONS_FOR_UNSLOTH["unsloth"], **VERSIONS, **VERSIONS_FOR_UNSLOTH}


def probe(backend="trl"):
    """Versions by package, GPUs, and requirements as pip takes them: all, and those that are not met."""
    needed = ranges(backend)
    installed = {name: version_of(name) for name in needed}
    wanted, missing = [requirement(name, needed) for name in needed], unmet(installed, needed)
    devices = []
    # Without unsloth nobody asks what its PyTorch sees.
    if installed["torch"] and installed.get("unsloth", True):
        try:
            devices = gpus()
        except (ImportError, OSError, RuntimeError) as error:
            # A PyTorch that cannot be loaded is as good as none.
            print(f"cannot use torch {installed['torch']}: {error}", file=sys.stderr)
            missing = sorted({*missing, requirement("torch", needed)}, key=wanted.index)
    found = {name: version_of(name) for name in OPTIONAL}
    return {
        "python": platform.python_version(),
        **installed,
        "optional": {name: version for name, version in found.items() if version},
        "devices": devices,
        "wanted": wanted,
        "missing": missing,
    }


def missing(backend="trl"):
    """The requirements that are not met, without loading any package."""
    needed = ranges(backend)
    return unmet({name: version_of(name) for name in needed}, needed)


def unmet(installed, needed):
    """The requirements that versions by package do not meet."""
    return [requirement(name, needed) for name, version in installed.items() if not is_met(name, version, needed)]


def version_of(name):
    """The version of a package; `None` where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirement(name, needed=VERSIONS):
    """The range of a package as pip takes it."""
    least, too_new = needed[name]
    return f"{name}>={least}" + (f",<{too_new}" if too_new else "")


def is_met(name, version, needed=VERSIONS):
    """Whether a version lies in the range of its package."""
    if version is None:
        return False
    least, too_new = needed[name]
    found = numbers(version)
    return numbers(least) <= found and (too_new is None or found < numbers(too_new))


def numbers(version):
    """The leading numbers of a version: `2.15.0+cpu` is (2, 15, 0)."""
    return tuple(int(part) for part in re.match(r"[0-9]*(?:\.[0-9]+)*", version).group().split(".") if part)


def gpus():
    """Name and memory of each GPU that PyTorch sees, and why what others do with it is not told, where that is so."""
    import torch

    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {"name": one.name, "bytes": one.total_memory, "unwatched": why_unwatched(getattr(one, "uuid", None))}
        for one in properties
    ]
