"""Files that a trial is made of: TRL's YAML and the rows as tokens, made by the program that started this worker."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from typing import NamedTuple

#: Environment variable that names the program.
PROGRAM_VARIABLE = "PEFT_TUNE_PROGRAM"
#: Label of a token that is no target.
NO_TARGET = -100
#: Rows that are held at a time as Python's numbers, which take many times their bytes.
AT_A_TIME = 1024


class Invalid(Exception):
    """Settings that cannot be trained."""


class TrialFiles(NamedTuple):
    """Answer of `peft-tune trial-files`."""

    #: Text of the file that `trl sft --config` reads, or of the script for unsloth.
    config: str
    #: Texts of files that it names by their names, which have to lie where it is read.
    beside: dict
    #: Folder of the model.
    model: str
    #: Rows to train on, and rows to evaluate on: Arrow streams of `input_ids` and `labels`.
    train: str
    held_out: str
    steps: int
    steps_per_epoch: int
    epochs: float
    #: Rows at the beginning of `held_out` that are evaluated.
    held_out_windows: int
    #: TRL's trainer. Rows of one that compares answers are JSON lines of text, which it tokenises itself.
    trainer: str
    #: Tokens that held-out rows of text are cut to.
    held_out_length: int
    #: What the file cannot say.
    refused: list


class Program:
    """The program, and its last answer: a trial is often followed by one that is the same but for what is measured."""

    def __init__(self, path=None, tool="trl"):
        #: Tool whose file is asked for.
        self.tool = tool
        self._path = path or os.environ.get(PROGRAM_VARIABLE) or shutil.which("peft-tune")
        self._last = (None, None)
        self._running = None
        self._lock = threading.Lock()

    def ask(self, recipe, plan):
        """Has the files of a trial made. Raises `Invalid`."""
        request = json.dumps({"tool": self.tool, "recipe": recipe, "plan": plan})
        asked, files = self._last
        if asked != request or not (os.path.exists(files.train) and os.path.exists(files.held_out)):
            files = self._made(request)
            self._last = (request, files)
        if files.refused:
            raise Invalid(f"the file for {self.tool} cannot say: {'; '.join(map(str, files.refused))}")
        return files

    def end(self):
        """Ends the program where it runs: this process is about to end."""
        with self._lock:
            if self._running is not None:
                with contextlib.suppress(OSError):
                    self._running.kill()

    def _made(self, request):
        if not self._path:
            raise Invalid(f"there is no peft-tune program here to make the rows: name it in {PROGRAM_VARIABLE}")
        try:
            with self._lock:
                pipe = subprocess.PIPE
                words, streams = [self._path, "trial-files"], {"stdin": pipe, "stdout": pipe, "stderr": pipe}
                # Whatever this user's locale is: the program writes no other.
                running = subprocess.Popen(words, **streams, encoding="utf-8")
                self._running = running
        except OSError as error:
            raise Invalid(f"cannot start {self._path} to make the rows: {error}") from error
        try:
            answer, told = running.communicate(request + "\n")
        finally:
            with self._lock:
                self._running = None
        sys.stderr.write(told)
        if running.returncode:
            lines = [line for line in told.splitlines() if line.strip()] or [f"ended with {running.returncode}"]
            raise Invalid(lines[-1].removeprefix("error: "))
        return read(answer)


def read(answer):
    """The files of an answer. Raises `Invalid` for what is none."""
    try:
        found = json.loads(answer)
        return TrialFiles(**{name: found[name] for name in TrialFiles._fields})
    except (ValueError, TypeError, KeyError) as error:
        raise Invalid(f"peft-tune trial-files gave no answer that can be read: {error!r}") from error


class Rows:
    """Rows of tokens, memory-mapped, with the lengths of those to train on and the target tokens of those held out."""

    def __init__(self):
        self._kept = {}
        self._longest = (None, None)
        self._targets = (None, None)

    def open(self, path, in_memory=False):
        """The rows of a file."""
        key = (path, in_memory)
        if key not in self._kept:
            import datasets

            make_room(self._kept)
            self._kept[key] = datasets.Dataset.from_file(path, in_memory=in_memory)
        return self._kept[key]

    def longest(self, path, count):
        """The numbers of the rows with the most tokens, these first; of equal ones those that come first."""
        if self._longest[0] != path:
            self._longest = (path, longest_first(lengths_of(self.open(path))))
        return self._longest[1][:count]

    def targets(self, path, count):
        """The target tokens of each of the first rows."""
        if self._targets[0] != (path, count):
            self._targets = ((path, count), targets_of(self.first(path, count)))
        return self._targets[1]

    def first(self, path, count):
        """The first rows of a file."""
        return FirstRows(self.open(path), count)


class FirstRows:
    """The first rows of a file, a slice at a time: all of them as Python's numbers take many times their bytes."""

    def __init__(self, rows, count):
        self._rows = rows
        self._count = min(count, len(rows))

    def __len__(self):
        return self._count

    def __getitem__(self, part):
        """The rows of a slice, each with its tokens and labels."""
        start, stop, _ = part.indices(self._count)
        found = self._rows[start:stop]
        return [{"input_ids": ids, "labels": labels} for ids, labels in zip(found["input_ids"], found["labels"])]


class Answers:
    """Rows of answers that are compared, as TRL's trainer made tokens of them."""

    def __init__(self, tokens, first):
        self.tokens = tokens
        #: The first row as it was read: a trainer is made with it, and given the tokens then.
        self.first = first
        self._longest = None

    def longest(self, count):
        """The numbers of the rows with the most tokens in a sequence, these first; of equal ones those that come first.

        Answers of other rows do not count: gradients go through a row's own sequences alone, which need the most memory.
        """
        if self._longest is None:
            own = [name for name in self.tokens.column_names if not name.startswith("KL_")]
            names = [name for name in own if name.endswith("_ids")]
            of_answers = [lengths_of(self.tokens, name) for name in names if name != "prompt_ids"]
            lengths = [max(of_row) for of_row in zip(*of_answers)]
            if "prompt_ids" in names:
                lengths = [sum(both) for both in zip(lengths, lengths_of(self.tokens, "prompt_ids"))]
            self._longest = longest_first(lengths)
        return self._longest[:count]


class AnswerRows:
    """Rows of answers that were tokenised last. They are held in memory: files beside the rows would outlive the worker."""

    def __init__(self):
        self._kept = {}

    def of(self, path, decided_by, tokenise):
        """The rows of a file, which `tokenise` makes tokens of where they are not there for what decides these."""
        key = (path, *decided_by)
        if key not in self._kept:
            import datasets

            with open(path, encoding="utf-8") as file:
                texts = datasets.Dataset.from_list([json.loads(line) for line in file])
            answers = Answers(tokenise(texts), datasets.Dataset.from_list([texts[0]]))
            make_room(self._kept)
            self._kept[key] = answers
        return self._kept[key]


def make_room(kept):
    """Drops what was kept first: one trial has two files."""
    while len(kept) > 3:
        del kept[next(iter(kept))]


def longest_first(lengths):
    """The numbers of rows by their lengths, the longest first; of equal ones those that come first."""
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def lengths_of(rows, column="input_ids"):
    """Tokens that each row has in a column."""
    table = getattr(rows, "data", None)
    if table is None:
        return [len(ids) for ids in rows[column]]
    import pyarrow.compute

    # Tokens themselves need not be read.
    return pyarrow.compute.list_value_length(table.column(column)).to_pylist()


def targets_of(rows):
    """Target tokens of each row: the first token has nothing before it that it could be told from."""
    counts = []
    for start in range(0, len(rows), AT_A_TIME):
        part = rows[start : start + AT_A_TIME]
        counts += [sum(label != NO_TARGET for label in row["labels"][1:]) for row in part]
    return counts
