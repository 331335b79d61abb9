"""A command in a session of its own, all of which ends at a limit: a `watch` that is killed alone leaves its run going."""

import os
import signal
import subprocess
import sys


def run_whole(words, output, folder, limit_s):
    """Exit code of a command whose output goes to a file; `None` where it took longer than its limit.

    None of its processes is left, whether it ended, ran into the limit, or the caller was interrupted.
    """
    with open(output, "wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=folder,
                                   start_new_session=True)
    try:
        return process.wait(timeout=max(limit_s, 0.0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def end_by_signals():
    """Makes SIGTERM end this program as Ctrl-C does, so that what it runs ends with it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
