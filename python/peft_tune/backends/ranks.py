"""The processes that share a trial, one a device: which of them this is, and how they agree.

PyTorch's own launcher starts them and TRL trains on them, as anywhere else. What the worker itself has to know of all of
them goes through a group beside that of the training, which waits on the processor for as long as it takes.
"""

import datetime
import os
from typing import Any, NamedTuple

#: Time that ranks wait for one another: for the next trial, and while the tuner holds the first of them.
PATIENCE = datetime.timedelta(days=30)


class Ranks:
    """The processes that share a trial. Without a launcher this one is all of them."""

    def __init__(self, rank=0, count=1, gather=None):
        self.rank = rank
        self.count = count
        self._gather = gather or (lambda value: [value])
        self._processes = self._gather(os.getpid())

    @classmethod
    def join(cls, device):
        """The processes that a launcher has started, of which this is one."""
        import torch.distributed as distributed

        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        device.ready_links()
        distributed.init_process_group(backend=device.collectives)
        group = distributed.new_group(backend="gloo", timeout=PATIENCE)

        def gather(value):
            found = [None] * count
            distributed.all_gather_object(found, value, group=group)
            return found

        return cls(rank, count, gather)

    @property
    def is_first(self):
        """Whether this one hears the tuner, and tells it of the trial."""
        return self.rank == 0

    def gathered(self, value):
        """The values of all ranks in their order. Each has to ask."""
        return self._gather(value)

    def of_first(self, value=None):
        """The value of the first rank."""
        return self.gathered(value)[0]

    def most(self, value):
        """The highest value of all ranks; `None` where none has one."""
        return max((one for one in self.gathered(value) if one is not None), default=None)

    def meet(self):
        """Waits until all ranks are here."""
        self.gathered(None)

    def are_whole(self):
        """Whether the processes of all ranks are there."""
        return all(map(is_there, self._processes))


def is_there(process):
    """Whether a process is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Step(NamedTuple):
    """A finished step, as one rank took it or as all of them."""

    event: dict
    rows: int
    #: Most bytes of tensors so far, where they are counted.
    peak: Any
    #: Whether the tuner wants the trial to end, and the seconds of the trial. The first rank decides for all.
    is_stopped: bool
    after_s: float


def of_all(steps):
    """The step that all ranks took together.

    Each rank's loss is its part of the mean over all target tokens, times the number of ranks, or the mean over its own rows:
    gradients are averaged.
    """
    event = dict(steps[0].event)
    event["loss"] = sum(step.event["loss"] for step in steps) / len(steps)
    for name in ("tokens", "target_tokens"):
        event[name] = sum(step.event[name] for step in steps)
    peak = max((step.peak for step in steps if step.peak is not None), default=None)
    return steps[0]._replace(event=event, rows=sum(step.rows for step in steps), peak=peak)
