"""The tools that trials train with, a row each: what a process loads before anything else, and how a trial's file is read."""

from collections.abc import Callable
from typing import NamedTuple

from . import settings, unsloth


class Tool(NamedTuple):
    """A tool, under the name of its backend."""

    name: str
    #: Reads the settings of a file's text.
    parsed: Callable
    #: Loads what has to come before PyTorch and TRL.
    prepare: Callable = lambda: None
    needs_gpu: bool = False


TOOLS = {
    tool.name: tool for tool in (Tool("trl", settings.parsed), Tool("unsloth", unsloth.parsed, unsloth.prepare, needs_gpu=True))
}


def parsed(program, files, is_gpu, changes=None):
    """The settings of a trial's files, as their tool has them, with other values in some fields. Raises `Invalid`."""
    return TOOLS[program.tool].parsed(files.config, is_gpu, files.trainer, changes)
