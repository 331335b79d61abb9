"""Messages from this worker to the tuner: one JSON object a line, as `peft-tune schema protocol` describes them."""

import json
import math
import os
import socket
import threading

#: Version of the protocol; both sides must agree.
PROTOCOL = 4
#: Exit code of a process that could have no more memory and cannot go on.
OUT_OF_MEMORY_EXIT = 86
#: What this worker can do beside running trials.
CAPABILITIES = ("cancel", "hold", "turns", "stop")
#: Characters of an error that a message holds at the most.
MOST_CHARACTERS = 2000


class Outbox:
    """A file descriptor for messages, whole lines at a time."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, message):
        """Writes one message. Raises `OSError` where nobody reads any more."""
        self.write(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n")

    def write(self, line):
        """Writes bytes as they are."""
        with self._lock:
            while line:
                line = line[os.write(self.descriptor, line) :]


def clean(metrics):
    """Metrics that are finite numbers: neither JSON nor the database has others."""
    return {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}


def finite(number):
    """A number, or `None` where it is infinite or none at all."""
    return number if math.isfinite(number) else None


def short(error):
    """The text of an error, cut to what a message holds."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    # Names of files may have bytes that are no text, with which the line would be no message.
    return text[:MOST_CHARACTERS].encode(errors="replace").decode()


def hello(version, device, threads, cpus, memory_limiter):
    """The greeting, which is the first line."""
    return {
        "event": "hello",
        "protocol": PROTOCOL,
        "version": version,
        "process": os.getpid(),
        "host": socket.gethostname(),
        "device": device,
        "threads": threads,
        "cpus": cpus,
        "memory_limiter": memory_limiter,
        "capabilities": list(CAPABILITIES),
    }


def heartbeat(number, resident_bytes):
    """A sign of life, whatever the computing thread does."""
    return {"event": "heartbeat", "number": number, "resident_bytes": resident_bytes}


def held(turn):
    """The answer to a hold."""
    return {"event": "held", "turn": turn}


def ready_to_measure(number):
    """The wish of a trial for its turn to measure."""
    return {"event": "ready_to_measure", "number": number}


def bye():
    """The last line of a worker that was asked to stop."""
    return {"event": "bye"}


def process_out_of_memory(in_use_bytes, requested_bytes, limit_bytes):
    """The last line of a process that cannot go on without memory that it cannot have."""
    return {
        "event": "out_of_memory",
        "in_use_bytes": in_use_bytes,
        "requested_bytes": requested_bytes,
        "limit_bytes": limit_bytes,
    }


def phase(number, name):
    """The beginning of a phase: load, profile, train or evaluate."""
    return {"event": "phase", "number": number, "phase": name}


def measured(number, metrics):
    """The end of the profile phase."""
    return {"event": "measured", "number": number, "metrics": clean(metrics)}


def training(number, steps):
    """The beginning of the training phase, with its length."""
    return {"event": "training", "number": number, "steps": steps}


def step(number, phase_name, event):
    """A finished step; an infinite norm of the gradients is `null`."""
    event = {**event, "grad_norm": finite(event["grad_norm"])}
    return {"event": "step", "number": number, "phase": phase_name, "step": event}


def evaluation(number, event, rows=None):
    """An evaluation, with the losses of its rows where they are asked for."""
    message = {"event": "evaluation", "number": number, "evaluation": event}
    return message if rows is None else {**message, "rows": rows}


def ended(number, state, wall_s):
    """The end of a trial; nothing more comes from it."""
    return {"event": "ended", "number": number, "state": state, "wall_s": wall_s}


def complete(metrics):
    """The state of a trial that went well."""
    return {"state": "complete", "metrics": clean(metrics)}


def pruned(at_step, metrics):
    """The state of a trial that was asked to stop."""
    return {"state": "pruned", "at_step": at_step, "rule": "stopped", "metrics": clean(metrics)}


def failed(reason, metrics):
    """The state of a trial that failed."""
    return {"state": "failed", "reason": reason, "metrics": clean(metrics)}


def out_of_memory(phase_name, in_use_bytes, limit_bytes):
    """The reason of a trial that could have no more memory."""
    return {
        "kind": "out_of_memory",
        "phase": phase_name,
        "in_use_bytes": in_use_bytes,
        "requested_bytes": None,
        "limit_bytes": limit_bytes,
    }


def diverged(at_step, loss, cause=None):
    """The reason of a trial whose loss exploded, with its last finite loss and the cause, where one is known."""
    known = {} if cause is None else {"cause": cause}
    return {"kind": "diverged", "at_step": at_step, "loss": loss, **known}


def crashed(phase_name, error):
    """The reason of a trial that broke."""
    return {"kind": "crashed", "phase": phase_name, "message": short(error)}


def timed_out(phase_name, after_s):
    """The reason of a trial that took longer than it may."""
    return {"kind": "timed_out", "phase": phase_name, "after_s": after_s}


def invalid(message):
    """The reason of a trial whose settings cannot be run at all."""
    return {"kind": "invalid", "message": short(message)}
