"""A group of ranks as the worker sees it: processes that PyTorch's launcher starts, and that end with the worker.

The launcher (`torch.distributed.run`) is a process of its own, and the ranks are its children, each a Python with this
package. They have the worker's pipes: the first rank reads requests and tells of the trial as a worker does. A group has a
folder, which the ranks run in: it holds their places, the files that a trial names, and why a rank failed.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import protocol
from .trial_files import Invalid

#: Module that the launcher and the ranks run.
MODULE = __package__
#: Environment variable with the process whose end is also that of the one that reads it.
PARENT_VARIABLE = "PEFT_TUNE_PARENT"
#: Environment variable with the GPUs that the program saw, of which the worker sees its own alone.
VISIBLE_VARIABLE = "PEFT_TUNE_VISIBLE_DEVICES"
#: File with the place of each rank.
PLACES = "places.json"
#: Number of the request by which the kernel ends a process with its parent (linux/prctl.h).
PR_SET_PDEATHSIG = 1


class RankGroup:
    """Ranks that have been started, and wait for trials."""

    def __init__(self, places, takes_turns):
        """Starts a rank at each place: its device, threads and processors."""
        surroundings = environment(places)
        self.places = places
        self.folder = Path(tempfile.mkdtemp(prefix="peft-tune-ranks-"))
        (self.folder / PLACES).write_text(json.dumps(places), encoding="utf-8")
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--launch", os.fspath(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.folder,
            env=surroundings,
        )
        hello = {"request": "hello", "protocol": protocol.PROTOCOL, "heartbeat_s": 0, "take_turns": takes_turns}
        self.say(hello)

    def is_whole(self):
        """Whether all ranks are there."""
        return self._launcher.poll() is None

    def say(self, request):
        """Hands a request to the first rank. One that is gone is noticed by the end of what it tells."""
        with contextlib.suppress(OSError, ValueError):
            self._launcher.stdin.write(json.dumps(request).encode() + b"\n")
            self._launcher.stdin.flush()

    def put_beside(self, files):
        """Lays files down where the ranks run, by their names."""
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def lines(self):
        """Lines that the ranks tell, until the last one of them is gone."""
        return iter(self._launcher.stdout.readline, b"")

    def ends_within(self, seconds):
        """Whether the ranks end by themselves in that time."""
        try:
            self._launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def failure(self):
        """Why a rank failed that is not the first one, and its number; `None` where none has said so."""
        found = sorted(self.folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime)
        if not found:
            return None
        return int(found[0].stem.partition("-")[2]), json.loads(found[0].read_text(encoding="utf-8"))

    def end(self):
        """Ends all ranks, waits until they are gone, and returns the exit code of their launcher."""
        with contextlib.suppress(OSError):
            self._launcher.stdin.close()
        # Where the kernel does not end the ranks with their launcher, it has to do that itself.
        self._launcher.send_signal(signal.SIGKILL if sys.platform == "linux" else signal.SIGTERM)
        for _ in self.lines():
            # All of them hold the other end.
            continue
        code = self._launcher.wait()
        self._launcher.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code


def environment(places):
    """The environment of a group: its GPUs, this package before any other of its name, and links within the machine."""
    folders = [Path(__file__).parents[2], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    threads = str(min(place["threads"] for place in places))
    changed = {
        PARENT_VARIABLE: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in folders),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": visible([place["device"] for place in places], os.environ.get(VISIBLE_VARIABLE)),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    if sys.platform == "linux":
        # Whatever the machine's own name leads to.
        changed["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return {**os.environ, **changed}


def visible(devices, seen):
    """The value of `CUDA_VISIBLE_DEVICES` with which a process sees these devices, of those that the program has `seen`.

    Raises `Invalid` for a device that it has not.
    """
    numbers = [int(device.partition(":")[2]) for device in devices if device != "cpu"]
    if seen is None:
        return ",".join(map(str, numbers))
    names = [name.strip() for name in seen.split(",") if name.strip()]
    for number in numbers:
        if number >= len(names):
            raise Invalid(f"PyTorch sees no GPU cuda:{number}: take fewer `devices`, or show it by CUDA_VISIBLE_DEVICES")
    return ",".join(names[number] for number in numbers)


def places_of(assignments, count, device, threads):
    """The places of so many ranks: those that the tuner assigns, else of a worker on this device with these threads."""
    if assignments:
        return [
            {"device": one["device"], "threads": one.get("threads") or threads, "cpus": one.get("cpus") or []}
            for one in assignments
        ]
    own = {"threads": max(threads // count, 1), "cpus": []}
    return [{"device": "cpu" if device == "cpu" else f"cuda:{rank}", **own} for rank in range(count)]


def place_in(folder, rank):
    """The place of a rank of the group that has this folder."""
    return places_in(folder)[rank]


def places_in(folder):
    """The places of the ranks of the group that has this folder."""
    return json.loads(Path(folder, PLACES).read_text(encoding="utf-8"))


def launch(folder):
    """Starts the ranks of the group that has this folder by PyTorch's launcher, and waits for their end."""
    end_with_parent()
    from torch.distributed import run

    count = len(places_in(folder))
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    words = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={count}"]
    # Standard output is the ranks' alone.
    with contextlib.redirect_stdout(sys.stderr):
        run.main([*words, "--module", MODULE, "--rank", folder])


def end_with_parent():
    """Lets the kernel end this process with the one that started it, however that ends; on Linux alone."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before.
    if os.getppid() != int(os.environ[PARENT_VARIABLE]):
        os._exit(1)


def leave_failure(folder, rank, reason):
    """Leaves word in the group's folder why a rank failed."""
    path = Path(folder, f"failure-{rank}.json")
    written = path.with_suffix(".part")
    written.write_text(json.dumps(reason), encoding="utf-8")
    os.replace(written, path)
