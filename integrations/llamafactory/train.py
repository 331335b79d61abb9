#!/usr/bin/env python3
"""One trial with LLaMA-Factory, for peft-tune's command backend.

    python train.py base.yaml

`base.yaml` is a LLaMA-Factory configuration that trains (`peft-tune export --format llamafactory` writes one). The sampled
parameters are put into it under LLaMA-Factory's names, and its `run_exp` runs with the callback that reports. Parameters that
are its own keys (`use_unsloth`, `flash_attn`, `enable_liger_kernel`, ...) go in as they are.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peft_tune_names
from peft_tune_callback import Memory, PeftTuneCallback, tuned


def configuration(base, trial):
    """The configuration `base` with a trial's parameters."""
    if "devices" in trial.params:
        trial.check_processes()
    config = peft_tune_names.configuration(base, trial, "llamafactory", trial.processes)
    if "packing" in trial.params:
        # Keeps packed documents from attending to each other.
        config["neat_packing"] = trial.param("packing")
    config.update(do_train=True, stage="sft", save_strategy="no", logging_steps=1, report_to="none",
                  overwrite_output_dir=True)
    return config


def main():
    with tuned() as trial:
        import yaml
        from llamafactory.train.tuner import run_exp

        memory = Memory()
        config = configuration(yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")), trial)
        callback = PeftTuneCallback(trial, memory)
        with tempfile.TemporaryDirectory(prefix="peft-tune-llamafactory-") as folder:
            run_exp({**config, "output_dir": folder}, callbacks=[callback])
        trial.finish(callback.result())


if __name__ == "__main__":
    main()
