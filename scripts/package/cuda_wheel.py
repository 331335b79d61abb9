#!/usr/bin/env python3
"""Makes the wheel `peft-tune-cuda` of a program with NVIDIA support: `cuda_wheel.py WHEEL PROGRAM FOLDER`.

WHEEL is the one of the plain program (`wheels.sh`): module and description are its own. In the place of its program come
the launcher, which finds the libraries of CUDA in NVIDIA's wheels, and PROGRAM. The tag says the oldest C library that
PROGRAM runs on. A newer one than FOLDER's readers have is told by pip, which then takes no such wheel.
"""

import argparse
import base64
import csv
import hashlib
import io
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

NAME = "peft-tune-cuda"
LAUNCHER = Path(__file__).parents[1] / "gpu" / "launch.sh"
# Releases that the driver 580 takes; those that PyTorch for CUDA 13.0 brings are among them.
NEEDED = (
    "nvidia-cublas==13.0.*",
    "nvidia-cuda-cupti==13.0.*",
    "nvidia-cuda-nvrtc==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-curand==10.4.*",
)
DRIVER = """
> This is the program with NVIDIA support. It needs the driver 580 or newer, whose library is in no wheel. `peft-tune` says
> what is missing. Install this package or `peft-tune`, not both: they hold the same program.
"""


def stripped(program: Path) -> bytes:
    """The program without its symbols."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "program"
        subprocess.run(["strip", "-o", copy, program], check=True)
        return copy.read_bytes()


def platform(program: Path) -> str:
    """The tag of the oldest C library that has all functions which the program asks for."""
    told = subprocess.run(["readelf", "--version-info", program], check=True, capture_output=True, text=True).stdout
    minors = [int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", told)]
    machine = re.search(r"Machine:.*(X86-64|AArch64)", subprocess.run(["readelf", "-h", program], check=True, capture_output=True, text=True).stdout)
    if not minors or not machine:
        raise SystemExit(f"error: {program} is no program for Linux on x86-64 or 64-bit ARM")
    return f"manylinux_2_{max(minors)}_{ {'X86-64': 'x86_64', 'AArch64': 'aarch64'}[machine[1]]}"


def described(metadata: str) -> str:
    """The plain wheel's metadata under the new name, with what this one needs."""
    head, _, body = metadata.partition("\n\n")
    head = re.sub(r"^Name: .*$", f"Name: {NAME}", head, count=1, flags=re.MULTILINE)
    return "\n".join([head, *(f"Requires-Dist: {one}" for one in NEEDED)]) + f"\n\n{DRIVER.lstrip()}\n{body}"


def repacked(wheel: zipfile.ZipFile, program: Path, tag: str) -> tuple[str, dict[str, tuple[bytes, int]]]:
    """The new wheel's name, and its files with their modes."""
    old = next(name.split("/")[0] for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).removesuffix(".dist-info")
    new = f"{NAME.replace('-', '_')}-{old.split('-')[1]}"
    files = {}
    for entry in wheel.infolist():
        name = entry.filename.replace(f"{old}.", f"{new}.", 1) if entry.filename.startswith(f"{old}.") else entry.filename
        if name.endswith("/") or name.startswith(f"{new}.data/scripts/") or name == f"{new}.dist-info/RECORD":
            continue
        content = wheel.read(entry)
        if name == f"{new}.dist-info/METADATA":
            content = described(content.decode()).encode()
        elif name == f"{new}.dist-info/WHEEL":
            content = re.sub(rb"^Tag: .*$", f"Tag: py3-none-{tag}".encode(), content, flags=re.MULTILINE)
        files[name] = (content, 0o644)
    files[f"{new}.data/scripts/peft-tune"] = (LAUNCHER.read_bytes(), 0o755)
    files[f"{new}.data/scripts/peft-tune.bin"] = (stripped(program), 0o755)
    return new, files


def record(files: dict[str, tuple[bytes, int]], own: str) -> bytes:
    """The table of a wheel's files with their digests."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        table.writerow([name, f"sha256={digest}", len(content)])
    table.writerow([own, "", ""])
    return text.getvalue().encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    tag = platform(arguments.program)
    with zipfile.ZipFile(arguments.wheel) as wheel:
        new, files = repacked(wheel, arguments.program, tag)
    table = f"{new}.dist-info/RECORD"
    files[table] = (record(files, table), 0o644)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    output = arguments.folder / f"{new}-py3-none-{tag}.whl"
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, (content, mode) in files.items():
            # The earliest date that a zip has: the same program gives the same bytes.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


main()
