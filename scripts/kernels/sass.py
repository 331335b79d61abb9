"""Machine code of kernels (SASS) as NVIDIA's disassembler reads it: which instructions run between which, in what loop."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

WHEEL = "nvidia-cuda-nvdisasm==13.2.51"
SECTION = re.compile(r"\.text\.(\S+):")
LABEL = re.compile(r"\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*?)\s*;")


class Instruction(NamedTuple):
    """`@guard name operands;`; `target` is where a branch goes."""

    address: int
    guard: str | None
    name: str
    operands: str
    target: int | None = None

    def starts(self, *names):
        return self.name.startswith(names)


def disassembler(cache):
    """NVIDIA's: of the PATH, a toolkit or a Python wheel, which is installed into `cache` if there is none; else None."""
    # pip installs no second wheel with a folder `nvidia` into one place.
    folder = f"{cache}/nvdisasm"
    for attempt in ("as it is", "installed"):
        homes = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *glob.glob(f"{folder}/nvidia/*")]
        found = shutil.which("nvdisasm", path=os.pathsep.join([os.environ["PATH"], *(f"{home}/bin" for home in homes)]))
        if found or attempt == "installed":
            return found
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, WHEEL]
        subprocess.run(pip, stdout=sys.stderr, check=False)


def kernels(program, machine_code):
    """{kernel: its instructions in order} of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        text = subprocess.run([program, "--print-code", file.name], capture_output=True, text=True, check=True).stdout
    found, labels, own, named = {}, {}, [], []
    for line in text.splitlines():
        if section := SECTION.match(line):
            own = found.setdefault(section[1], [])
        elif label := LABEL.match(line):
            named.append(label[1])
        elif instruction := INSTRUCTION.match(line):
            address, guard, name, operands = instruction.groups()
            own.append(Instruction(int(address, 16), guard, name, operands))
            labels |= {name: own[-1].address for name in named}
            named = []
    return {kernel: [with_target(one, labels) for one in own] for kernel, own in found.items()}


def with_target(instruction, labels):
    """Calls, and branches of lanes that have parted from their warp (`BRA.DIV`), are no part of a kernel's way."""
    label = re.search(r"`\((\.L_x_\d+)\)", instruction.operands)
    is_branch = instruction.starts("BRA") and not instruction.starts("BRA.DIV")
    return instruction._replace(target=labels.get(label[1])) if label and is_branch else instruction


def has(instructions, *names):
    return any(instruction.starts(*names) for instruction in instructions)


def between(instructions, first, last):
    return [instruction for instruction in instructions if first <= instruction.address < last]


def main_loop(instructions, *names):
    """The smallest loop that has each of these instructions."""
    loops = [between(instructions, end.target, end.address + 1) for end in instructions if end.target is not None and end.target <= end.address]
    return min((loop for loop in loops if all(has(loop, name) for name in names)), key=len, default=[])


def inner_loops(loop):
    """How many loops are inside."""
    first = loop[0].address
    return sum(first < end.target <= end.address for end in loop if end.target is not None)


def usual_way(loop, *names):
    """The instructions of a loop but those that a branch may pass over and that have none of these."""
    way, end = [], loop[0].address
    for instruction in loop:
        if instruction.address < end:
            continue
        way.append(instruction)
        target = instruction.target or 0
        if instruction.address < target <= loop[-1].address:
            passed_over = between(loop, instruction.address + 1, target)
            end = instruction.address if has(passed_over, *names) else target
    return way
