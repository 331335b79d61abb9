"""axolotl as peft-tune's command backend: a plugin that reports, and a program that writes a trial's configuration.

    python peft_tune_axolotl.py base.yaml

`base.yaml` is an axolotl configuration that trains (`peft-tune export --format axolotl` writes one). For each trial the
sampled parameters are put into a copy of it, under axolotl's names, and `axolotl train` runs with this file as a plugin.
Parameters that are axolotl keys themselves (`flash_attention`, `lora_mlp_kernel`, `sample_packing`, ...) go in as they are.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import peft_tune_names
from peft_tune_callback import TRIAL_VARIABLE, Invalid, Memory, PeftTuneCallback, Trial, outcome_of

try:
    from axolotl.integrations.base import BasePlugin
except ImportError:
    BasePlugin = object

#: The line behind the last report.
END = b"end\n"


def configuration(base, trial):
    """The configuration `base` with a trial's parameters."""
    config = peft_tune_names.configuration(base, trial, "axolotl", trial.param("devices", default=1))
    config["include_tokens_per_second"] = True
    config["plugins"] = [*config.get("plugins", []), "peft_tune_axolotl.PeftTunePlugin"]
    return config


class PeftTunePlugin(BasePlugin):
    """Adds the callback that reports to axolotl's trainer."""

    def add_callbacks_post_trainer(self, cfg, trainer):
        trial = Trial.read(output=open(os.environ["PEFT_TUNE_REPORTS"], "w", encoding="utf-8"))
        self.callback = PeftTuneCallback(trial, Memory())
        return [self.callback]

    def post_train(self, cfg, model):
        self.callback.trial.finish(self.callback.result())


def main():
    import yaml

    trial = Trial.read()
    base = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        config = configuration(base, trial)
    except Invalid as error:
        return trial.fail(*outcome_of(error))
    with tempfile.TemporaryDirectory(prefix="peft-tune-axolotl-") as folder:
        path = Path(folder) / "trial.yaml"
        config["output_dir"] = str(Path(folder) / "output")
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        code, tail = train(path, trial, Path(folder) / "reports")
        if code != 0:
            trial.fail(*outcome_of(RuntimeError(tail)))


def train(path, trial, reports):
    """Runs axolotl on a configuration; returns its exit code and the end of what it said. What the plugin reports comes through a
    pipe with a name, since axolotl trains in processes of processes that it starts, and these inherit no descriptor."""
    settings = {"params": trial.params, "trial": trial.number, "seed": trial.seed, "steps": trial.steps}
    os.mkfifo(reports)
    # Open for both, so that opening waits for nobody and the end of one writer is not the end.
    pipe = os.open(reports, os.O_RDWR)
    passing_on = threading.Thread(target=pass_on, args=(pipe,))
    passing_on.start()
    # A process that waits for axolotl's telemetry would be measured, and may wait for minutes where there is no network.
    environment = {"AXOLOTL_DO_NOT_TRACK": "1", **os.environ, TRIAL_VARIABLE: json.dumps(settings),
                   "PEFT_TUNE_REPORTS": str(reports),
                   "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    # What axolotl prints goes to standard error.
    child = subprocess.Popen(["axolotl", "train", str(path)], env=environment, stdin=subprocess.DEVNULL,
                             stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    tail = []
    for line in child.stderr:
        sys.stderr.write(line)
        tail = [*tail[-30:], line]
    code = child.wait()
    os.write(pipe, END)
    passing_on.join()
    return code, "".join(tail)[-1500:]


def pass_on(pipe):
    """Prints the lines that come through a pipe, up to the end mark."""
    with os.fdopen(pipe, "rb") as lines:
        for line in iter(lines.readline, END):
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
