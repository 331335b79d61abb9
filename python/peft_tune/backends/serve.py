"""The worker's side of the protocol: one thread reads requests, another tells of life, and trials run in turn."""

import json
import queue
import sys
import threading
import time

from . import protocol
from .device import status_bytes


class OtherProtocol(Exception):
    """A tuner of another version."""


def serve(lines, outbox, control, run, on_alone):
    """Serves requests until the lines end or the tuner asks to stop. Raises `OtherProtocol` and what `run` raises.

    `on_alone` is called, in another thread, when the lines have ended: the trial under way is then asked to stop, which
    takes until the end of its step.
    """
    requests = Requests(outbox, control)
    threading.Thread(target=requests.read, args=(lines, on_alone), name="requests", daemon=True).start()
    while (request := requests.trials.get()) is not None:
        if isinstance(request, Exception):
            raise request
        control.set_under_way(request["number"])
        try:
            run(request)
        finally:
            control.set_under_way(None)
    if not control.is_alone():
        outbox.say(protocol.bye())


class Requests:
    """The reader of requests, so that a cancellation arrives while a trial runs."""

    def __init__(self, outbox, control):
        self._outbox = outbox
        self._control = control
        #: Trials in their order; `None`, or an error, is the last.
        self.trials = queue.SimpleQueue()

    def read(self, lines, on_alone):
        """Reads requests to their end."""
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                print(f"not a request ({type(error).__name__}: {error}): {line[:500]!r}", file=sys.stderr)
        self._control.coordinator_gone()
        self.trials.put(None)
        on_alone()

    def _take(self, request):
        kind, control = request["request"], self._control
        if kind == "hello":
            self._greet(request)
        elif kind == "trial":
            control.begin(request["number"])
            self.trials.put(request)
        elif kind == "cancel":
            control.cancel(request["number"])
        elif kind == "hold":
            control.hold(request["turn"])
        elif kind == "resume":
            control.resume()
        elif kind == "measure":
            control.grant(request["number"])
        elif kind == "stop":
            self.trials.put(None)
        else:
            raise ValueError(f"there is no request `{kind}`")

    def _greet(self, request):
        if request["protocol"] != protocol.PROTOCOL:
            self.trials.put(
                OtherProtocol(
                    f"the coordinator speaks protocol {request['protocol']} (peft-tune {request.get('version')}), this "
                    f"worker speaks {protocol.PROTOCOL}: use the same peft-tune on both sides"
                )
            )
            return
        self._control.take_turns(bool(request.get("take_turns")))
        every_s = float(request["heartbeat_s"])
        if every_s > 0:
            beat = Heartbeat(every_s, self._outbox, self._control)
            threading.Thread(target=beat.run, name="heartbeat", daemon=True).start()


class Heartbeat:
    """A sign every few seconds that this process lives, whatever its computing thread does."""

    def __init__(self, every_s, outbox, control):
        self._every_s = every_s
        self._outbox = outbox
        self._control = control

    def run(self):
        """Tells it until nobody reads."""
        while True:
            time.sleep(self._every_s)
            try:
                self._outbox.say(protocol.heartbeat(self._control.under_way(), status_bytes("VmRSS")))
            except OSError:
                self._control.coordinator_gone()
                return
            except MemoryError:
                # The trial has taken all that it may; that is told when it ends.
                continue
