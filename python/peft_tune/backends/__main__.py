"""The process of a worker: `-m peft_tune.backends --device cpu --threads 2`, or `--probe` for what this Python has.

With `--profile` it reads one line of JSON, profiles the recipe in it and prints another.
"""

import argparse
import contextlib
import gc
import os
import shlex
import signal
import sys
import time

from . import probe, profile, protocol, rank_group
from .control import Control
from .device import Device, DeviceError, status_bytes
from .faults import Fault, ProcessOutOfMemory
from .host_load import usable_cpus
from .launched import RanksLost, Trials
from .ranks import Ranks
from .serve import OtherProtocol, serve
from .tools import TOOLS
from .trial import DeviceLost, Runner
from .trial_files import Program

#: Environment variable with the version of the program that started this worker.
VERSION_VARIABLE = "PEFT_TUNE_VERSION"
#: Seconds that a worker whose tuner is gone may take to end its step before it ends in the middle of it.
ALONE_S = 5.0
#: Seconds that a rank that failed gives the first one to tell of the end with what it has measured. Then it ends all.
FAREWELL_S = 1.0
#: Progress is no message for people here.
QUIET = ("HF_DATASETS_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")


def main():
    """Serves, or probes, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="peft_tune.backends", description=__doc__)
    parser.add_argument("--backend", choices=TOOLS, default="trl", help="tool that trains")
    parser.add_argument("--probe", action="store_true", help="prints versions and GPUs as one JSON object")
    parser.add_argument("--profile", action="store_true", help="profiles the recipe of a line of standard input")
    parser.add_argument("--device", help="device to compute on [default: the GPU, else the processor]")
    parser.add_argument("--threads", type=int, help="threads to compute with [default: PyTorch's]")
    parser.add_argument("--launch", metavar="FOLDER", help="starts the ranks of the group that has this folder")
    parser.add_argument("--rank", metavar="FOLDER", help="is one of these ranks")
    arguments = parser.parse_args()
    if arguments.launch:
        rank_group.launch(arguments.launch)
        return 0
    # Messages have a descriptor of their own: whatever libraries print goes to standard error.
    outbox = protocol.Outbox(os.dup(1))
    os.dup2(2, 1)
    if arguments.probe:
        outbox.say(probe.probe(arguments.backend))
        return 0
    requests = own_input(outbox)
    # As any other program's: an interrupt ends it, and is no exception in the middle of a trial.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return (profile_once if arguments.profile else work)(arguments, requests, outbox)


def own_input(outbox):
    """Standard input under a descriptor of its own, which processes that read rows do not have, and no messages either.

    A thread waits in it, and such a process would wait for that thread before it begins: it closes `sys.stdin`.
    """
    requests = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def leave():
        for descriptor in (requests.fileno(), outbox.descriptor):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    os.register_at_fork(after_in_child=leave)
    return requests


def profile_once(arguments, requests, outbox):
    """Profiles one recipe and tells what came of it; returns the exit code."""
    # The profiler's own library tells of every start, and of a GPU that is not there.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        device, _ = loaded(arguments.device, arguments.threads, tool=TOOLS[arguments.backend])
    except (ImportError, OSError, DeviceError) as error:
        outbox.say({"failed": {"is_invalid": True, "message": str(error)}})
        return 0
    outbox.say(profile.answer(requests.readline(), device, arguments.backend))
    return 0


def work(arguments, requests, outbox):
    """Does the work of a worker, or of a rank; returns the exit code."""
    try:
        if arguments.rank:
            serve_as_rank(arguments.rank, requests, outbox)
        else:
            serve_as_worker(arguments, requests, outbox)
    except (ValueError, ImportError, OSError, DeviceError, DeviceLost, OtherProtocol, RanksLost) as error:
        print(f"peft_tune.backends: {error}", file=sys.stderr)
        return 1
    except (MemoryError, ProcessOutOfMemory):
        return out_of_memory(outbox)
    return 0


def serve_as_worker(arguments, requests, outbox):
    """Greets once all is loaded, and serves."""
    fault = Fault(os.environ.get("PEFT_TUNE_FAULT"), outbox)
    fault.at_start()
    device, threads = loaded(arguments.device, arguments.threads, tool=TOOLS[arguments.backend])
    control, program = Control(outbox), Program(tool=arguments.backend)
    runner = Runner(device, program, control, fault, emitter(outbox, control), Ranks())
    trials = Trials(runner, control, outbox, threads)
    outbox.say(greeting(device, threads))
    serve(requests, outbox, control, trials.run, lambda: end_alone(program))
    trials.end()


def serve_as_rank(folder, requests, outbox):
    """Serves as one of the ranks of the group that has this folder. The first of them hears requests."""
    rank_group.end_with_parent()
    rank = int(os.environ["RANK"])
    place = rank_group.place_in(folder, rank)
    if place["cpus"]:
        os.sched_setaffinity(0, place["cpus"])
    device, threads = loaded(place["device"], place["threads"], rank)
    ranks, program = Ranks.join(device), Program()
    if not ranks.is_first:
        # It tells nothing, hears of a trial from the first one, and meets no fault that is caused on purpose.
        outbox = protocol.Outbox(os.open(os.devnull, os.O_WRONLY))
        control = Control(outbox)
        runner = Runner(device, program, control, Fault(), ender(folder, ranks), ranks)
        while (request := ranks.of_first()) is not None:
            runner.run(request)
        return
    control, fault = Control(outbox), Fault(os.environ.get("PEFT_TUNE_FAULT"), outbox)
    runner = Runner(device, program, control, fault, emitter(outbox, control), ranks)

    def run(request):
        ranks.of_first(request)
        runner.run(request)

    outbox.say(greeting(device, threads))
    serve(requests, outbox, control, run, lambda: end_alone(program))
    ranks.of_first(None)


def greeting(device, threads):
    """The first message."""
    version = os.environ.get(VERSION_VARIABLE, "unknown")
    return protocol.hello(version, device.name, threads, pinned_to(), device.memory_limiter)


def ender(folder, ranks):
    """A function that hears of the end of a trial on a rank, and ends that where it failed: the others may wait for it.

    What it has to say of the reason is one only where no other rank was lost before.
    """

    def emit(message):
        if message["event"] == "ended" and message["state"]["state"] == "failed":
            time.sleep(FAREWELL_S)
            if ranks.are_whole():
                rank_group.leave_failure(folder, ranks.rank, message["state"]["reason"])
            os._exit(1)

    return emit


def loaded(device_name, threads, index=0, tool=TOOLS["trl"]):
    """The device and the number of threads, once all libraries of a tool are there.

    An import may hold all threads for longer than signs of life may fail to come, so that it comes before the greeting.
    """
    if missing := probe.missing(tool.name):
        install = shlex.join([sys.executable, "-m", "pip", "install", *missing])
        raise ImportError(f"this Python lacks {', '.join(missing)}: {install}")
    if tool.needs_gpu and device_name == "cpu":
        raise DeviceError(f"{tool.name} has its kernels on GPUs alone: name one, such as `cuda:0`")
    os.environ.update(dict.fromkeys(QUIET, "1"))
    tool.prepare()
    import datasets  # noqa: F401
    import torch
    from trl import SFTTrainer  # noqa: F401

    if threads:
        torch.set_num_threads(threads)
    device = Device.open(device_name, index)
    # Nothing of the libraries is ever garbage.
    gc.collect()
    gc.freeze()
    return device, torch.get_num_threads()


def emitter(outbox, control):
    """A function that tells of a trial, and notes where nobody reads any more."""

    def emit(message):
        try:
            outbox.say(message)
        except OSError:
            control.coordinator_gone()

    return emit


def end_alone(program):
    """Ends the process where nothing else has in time, and the program that it started."""
    time.sleep(ALONE_S)
    program.end()
    os._exit(1)


def pinned_to():
    """Processors that this process is pinned to; none where it may run on all."""
    cpus = usable_cpus()
    return cpus if len(cpus) < (os.cpu_count() or 0) else []


def out_of_memory(outbox):
    """Tells that the process can have no more memory and cannot go on; returns the exit code that says so."""
    in_use = status_bytes("VmRSS") or 0
    # How much was asked for is not known, nor whose limit it was.
    outbox.say(protocol.process_out_of_memory(in_use, 0, in_use))
    return protocol.OUT_OF_MEMORY_EXIT


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Threads that wait for requests would hold the process up.
    os._exit(code)
