"""Faults that a worker causes on purpose, so that tests meet the real thing.

`PEFT_TUNE_FAULT=KIND:WHERE[,trial=N][,attempts=N]`, where `WHERE` is a phase (`load`, `profile`, `train`, `evaluate`)
or `start` (before the greeting). `trial` limits it to one trial, `attempts` to a trial's first so many attempts.
"""

import mmap
import os
import signal
import time

#: Kinds of fault: the computing thread hangs, the process stands still, aborts, is killed, ends without a word, an
#: exception is raised, memory runs out in the trial or in the process, the loss is no number, lines are no messages, the
#: machine says that another program takes half of each processor.
KINDS = ("hang", "freeze", "crash", "kill", "exit", "panic", "oom", "oom_system", "nan", "garble", "busy")
#: Kinds that are met later than where the phase begins.
MET_LATER = ("nan", "busy")
PHASES = ("load", "profile", "train", "evaluate")
#: Numbers from here on are rehearsals, which are no trials.
REHEARSALS = 2**64 - 1 - 2**16
#: Bytes of a block that is asked for on the way out of memory, and bytes that are too many where there is no limit.
BLOCK_BYTES, ENOUGH_BYTES = 32 << 20, 6 << 30


class ProcessOutOfMemory(Exception):
    """The process can have no more memory and cannot go on."""


class Fault:
    """The fault to cause, if any."""

    def __init__(self, text=None, outbox=None):
        """Reads a fault. Raises `ValueError` for a text that names none."""
        self.kind = self.phase = self._trial = self._attempts = None
        self._outbox = outbox
        if not text:
            return
        wrong = f"PEFT_TUNE_FAULT: `{text}` is not KIND:WHERE[,trial=N][,attempts=N]"
        first, *limits = text.split(",")
        self.kind, _, self.phase = first.partition(":")
        if self.kind not in KINDS or self.phase not in (*PHASES, "start"):
            raise ValueError(wrong)
        for limit in limits:
            name, _, value = limit.partition("=")
            if name not in ("trial", "attempts") or not value.isdigit():
                raise ValueError(wrong)
            setattr(self, f"_{name}", int(value))

    def at_start(self):
        """Causes the fault where it belongs to the start of the process."""
        if self.phase == "start":
            self._cause()

    def at(self, request, phase):
        """Causes the fault where it belongs to this phase of this trial."""
        if self.kind not in MET_LATER and self._is_meant(request, phase):
            self._cause()

    def spoils_loss(self, request, phase):
        """Whether the loss of this phase is to be no number."""
        return self.kind == "nan" and self._is_meant(request, phase)

    def makes_busy(self, request, phase):
        """Whether the machine is to look busy in this phase."""
        return self.kind == "busy" and self._is_meant(request, phase)

    def _is_meant(self, request, phase):
        number = request["number"]
        return (
            self.phase == phase
            and number < REHEARSALS
            and self._trial in (None, number)
            and (self._attempts is None or request.get("attempt", 1) <= self._attempts)
        )

    def _cause(self):
        if self.kind == "hang":
            while True:
                time.sleep(3600)
        elif self.kind == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "crash":
            os.abort()
        elif self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "exit":
            os._exit(0)
        elif self.kind == "panic":
            raise RuntimeError("a fault that was asked for")
        elif self.kind == "oom":
            fill_memory()
        elif self.kind == "oom_system":
            raise ProcessOutOfMemory("a fault that was asked for")
        elif self.kind == "garble":
            self._outbox.write(b'not a message\n{"event":"phase","num\n')


def fill_memory():
    """Asks for memory until there is no more, and touches none: the machine has it still. Raises `MemoryError`."""
    blocks, flags = [], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        while len(blocks) * BLOCK_BYTES < ENOUGH_BYTES:
            blocks.append(mmap.mmap(-1, BLOCK_BYTES, flags=flags))
    except OSError as error:
        raise MemoryError(str(error)) from error
    finally:
        for block in blocks:
            block.close()
    raise MemoryError(f"{ENOUGH_BYTES} bytes are no limit's")
