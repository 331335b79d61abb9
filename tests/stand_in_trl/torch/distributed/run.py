"""A launcher: starts a process a rank, each in a session of its own, and ends all of them when one has failed."""

import os
import socket
import subprocess
import sys
import time


def main(words):
    options, (_, module, *arguments) = words[: words.index("--module")], words[words.index("--module") :]
    assert options[:2] == ["--standalone", "--local-addr=127.0.0.1"], options
    count = int(options[2].removeprefix("--nproc-per-node="))
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    ranks = [start(rank, count, port, [module, *arguments]) for rank in range(count)]
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(0.02)
    failed = [rank.returncode for rank in ranks if rank.returncode]
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    for rank in ranks:
        rank.wait()
    if failed:
        raise SystemExit(f"a rank ended with {failed[0]}")


def start(rank, count, port, words):
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **{name: str(value) for name, value in about.items()}}
    return subprocess.Popen([sys.executable, "-u", "-m", *words], env=environment, start_new_session=True)
