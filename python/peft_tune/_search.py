"""Searches, run as a program of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ._program import ProgramError, find_program
from ._study import DATABASE, Study

Progress = Callable[[str], None]


def _to_line() -> Progress:
    """Shows a line in the place of the one before: in a notebook's cell, or on standard error."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = lambda: None  # noqa: E731
    if get_ipython() is not None:
        handle = display({"text/plain": "starting"}, raw=True, display_id=True)
        return lambda line: handle.update({"text/plain": line}, raw=True)
    return lambda line: print(line, file=sys.stderr, flush=True)


def search(
    space: str | os.PathLike[str] | Mapping[str, Any],
    database: str | os.PathLike[str] = DATABASE,
    *,
    trials: int | None = None,
    time: str | None = None,
    progress: Progress | bool = True,
    options: tuple[str, ...] = (),
) -> Study:
    """Runs a search to its end, or on to it where it was begun, and returns its study.

    `space` is a search-space file, or the same as a mapping, whose paths are then seen from the current folder. `trials`
    and `time` (such as `"30m"`) take the place of the file's budget; `options` are further ones of `peft-tune search`.
    `progress` gets each line of the program's log; `True` shows it, `False` does not. An interrupt (the stop button) ends
    the search as Ctrl-C does: the trial under way is finished, and the same call continues.

    Raises `ProgramError`.
    """
    show = progress if callable(progress) else (_to_line() if progress else lambda line: None)
    if isinstance(space, Mapping):
        # JSON is YAML; the file lies here, so that paths mean what they say.
        with tempfile.NamedTemporaryFile("w", dir=".", prefix=".peft-tune-", suffix=".yaml", delete=False) as file:
            json.dump(dict(space), file)
        try:
            return _run(Path(file.name), database, trials, time, show, options)
        finally:
            os.unlink(file.name)
    return _run(Path(space), database, trials, time, show, options)


def _run(
    space: Path,
    database: str | os.PathLike[str],
    trials: int | None,
    time: str | None,
    show: Progress,
    options: tuple[str, ...],
) -> Study:
    command = [str(find_program()), "search", str(space), "--db", os.fspath(database), "--json", *options]
    command += [] if trials is None else ["--trials", str(trials)]
    command += [] if time is None else ["--time", time]
    lines: list[str] = []
    # A file for the result: a pipe that nobody reads meanwhile could fill up.
    with tempfile.TemporaryFile("w+") as result:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=result, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        assert process.stderr is not None
        with process:
            try:
                for line in process.stderr:
                    lines.append(line.rstrip())
                    show(lines[-1])
            except KeyboardInterrupt:
                # In a terminal the program got the signal too; told again, it would not finish the trial under way.
                if not sys.stdin.isatty():
                    process.send_signal(signal.SIGINT)
                for line in process.stderr:
                    show(line.rstrip())
                raise
        result.seek(0)
        text = result.read()
    if process.returncode:
        raise ProgramError(process.returncode, "\n".join(lines[-5:]).removeprefix("error: "))
    return Study(json.loads(text)["study"], database)
