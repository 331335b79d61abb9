"""The course of a training: how far it has come, and whether its losses still are any."""

import math

from . import protocol

#: Nats above the first loss at which a training counts as diverged, as in the native engine.
DIVERGED_NATS = 10.0
#: Steps in a row whose gradients may overflow in fp16 before that counts as divergence, as in the native engine.
MOST_OVERFLOWS = 33
#: Nats by which a loss had climbed that diverged for its rate, as in the native engine.
CLIMBED_NATS = 2.0


class Ended(Exception):
    """The end of a trial before its time, for the reason that goes with it."""

    def __init__(self, reason):
        super().__init__(reason["kind"])
        self.reason = reason


class Measured(Exception):
    """The end of a profile that is no part of a training."""


class Losses:
    """The losses of a training, and whether it has diverged."""

    def __init__(self, is_fp16):
        self._is_fp16 = is_fp16
        self._most_overflows = MOST_OVERFLOWS if is_fp16 else 1
        self._overflows = 0
        self._first = None
        self._lowest = math.inf
        #: The last finite loss.
        self.last = None

    def check(self, event):
        """Takes in a step. Raises `Ended` where the training has diverged."""
        loss = event["loss"]
        if self._first is None:
            self._first = loss
        self._overflows = 0 if math.isfinite(event["grad_norm"]) else self._overflows + 1
        is_sound = math.isfinite(loss) and loss < self._first + DIVERGED_NATS
        if not is_sound or self._overflows >= self._most_overflows:
            cause = "overflow" if is_sound and self._is_fp16 else self.cause()
            raise Ended(protocol.diverged(event["step"], self.last, cause))
        self.last = loss
        self._lowest = min(self._lowest, loss)

    def cause(self):
        """The rate, where the loss had climbed before it was no number any more: no single batch explains that."""
        return "rate" if self.last is not None and self.last - self._lowest > CLIMBED_NATS else None


class Progress:
    """How far a training has come."""

    def __init__(self):
        self.steps = self.tokens = 0

    def took(self, event):
        """Counts a step."""
        self.steps += 1
        self.tokens += event["tokens"]
