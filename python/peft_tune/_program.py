"""Finds and runs the `peft-tune` program that this package came with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class ProgramError(RuntimeError):
    """`peft-tune` ended with an error.

    `code` is its exit code: 2 is bad input, the others are in the project's docs/exit-codes.md.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message or f"peft-tune ended with code {code}")
        self.code = code


def find_program() -> Path:
    """The program: `PEFT_TUNE_PROGRAM`, else where this package was installed, else the first on `PATH`.

    Raises `FileNotFoundError` where there is none.
    """
    name = "peft-tune" + (sysconfig.get_config_var("EXE") or "")
    if asked := os.environ.get("PEFT_TUNE_PROGRAM"):
        return Path(asked)
    schemes = [sysconfig.get_path("scripts")]
    if os.name == "posix":
        schemes.append(sysconfig.get_path("scripts", "posix_user"))
    for folder in schemes:
        if folder and (path := Path(folder) / name).is_file():
            return path
    if path := shutil.which(name):
        return Path(path)
    raise FileNotFoundError("there is no peft-tune program here: install it with `pip install peft-tune`")


def run(arguments: Sequence[str | os.PathLike[str]]) -> str:
    """Runs the program to its end and returns what it prints. Raises `ProgramError`."""
    command = [str(find_program()), *map(os.fspath, arguments)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ProgramError(ended.returncode, ended.stderr.strip().removeprefix("error: "))
    return ended.stdout


def run_json(arguments: Sequence[str | os.PathLike[str]]) -> Any:
    """What the program prints with `--json`."""
    return json.loads(run([*arguments, "--json"]))
