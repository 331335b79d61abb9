#!/usr/bin/env python3
"""Starts a trial on as many processes as its `devices` say: torchrun, accelerate, DeepSpeed, or a command of your own.

    python launch.py torchrun|accelerate|deepspeed [--dry-run] [--launcher-args "..."] -- train.py ARGS...
    python launch.py --template "mpirun -n {devices} python" -- train.py ARGS...

In a template `{devices}` stands for the number of processes and `{port}` for a port that is free.

The trial comes on standard input, which a launcher gives to one of its processes at most, so all get it in the environment
variable PEFT_TUNE_TRIAL. The first of them reports. SIGTERM is passed on to all; a trial in one process is started without a
launcher. In the space file, `devices` is then a parameter as any other:

    space: {devices: [1, 2, 4], ...}
    backend: {command: [python3, integrations/launch/launch.py, torchrun, --, my_train.py]}
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peft_tune_callback import TRIAL_VARIABLE

#: How each launcher is told the number of processes on this machine, and where they meet: trials may run side by side.
TEMPLATES = {
    "torchrun": "torchrun --standalone --nproc_per_node={devices}",
    "accelerate": "accelerate launch --num_processes={devices} --num_machines=1 --main_process_port={port} --mixed_precision=no --dynamo_backend=no",
    "deepspeed": "deepspeed --no_local_rank --master_port={port} --num_gpus={devices}",
}
#: How `accelerate launch` is told what kind of launch it is. Without any, and without GPUs in sight, it starts one process only.
ACCELERATE_KINDS = ("--multi_gpu", "--use_fsdp", "--use_deepspeed", "--use_megatron_lm", "--tpu", "--config_file")


def command_of(words, devices):
    """The command line that starts the program in `words`, behind `--`, on so many processes."""
    if "--" not in words:
        raise SystemExit("write the program that trains behind `--`")
    options, program = words[: words.index("--")], words[words.index("--") + 1:]
    template, extra = None, ""
    while options:
        word = options.pop(0)
        if word in TEMPLATES:
            template = TEMPLATES[word]
        elif word in ("--template", "--launcher-args") and options:
            value = options.pop(0)
            template, extra = (value, extra) if word == "--template" else (template, value)
        elif word != "--dry-run":
            raise SystemExit(f"`{word}` is no launcher; write one of {', '.join(TEMPLATES)}, or --template")
    if devices == 1:
        return [sys.executable, *program]
    if template is None:
        raise SystemExit(f"write one of {', '.join(TEMPLATES)}, or --template")
    extra = shlex.split(extra)
    if template == TEMPLATES["accelerate"] and not any(word.startswith(ACCELERATE_KINDS) for word in extra):
        extra = ["--multi_gpu", *extra]
    return shlex.split(template.format(devices=devices, port=free_port())) + extra + program


def free_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def environment(trial):
    """The environment of a trial. Launchers are found beside this interpreter, whose virtual environment may not be active."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, TRIAL_VARIABLE: trial}


def main():
    text = sys.stdin.readline()
    try:
        devices = int(json.loads(text)["params"].get("devices", 1))
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"expected one JSON object with `params` on standard input: {error}") from error
    command = command_of(sys.argv[1:], devices)
    if "--dry-run" in sys.argv:
        return print(shlex.join(command))
    child = subprocess.Popen(command, env=environment(text.strip()), stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    sys.exit(child.wait() if child.returncode is None else child.returncode)


if __name__ == "__main__":
    main()
