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

from peft_tune_callback import Invalid, Memory, PeftTuneCallback, tuned

#: peft-tune's parameters under LLaMA-Factory's names.
NAMES = {
    "rank": "lora_rank",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "target_modules": "lora_target",
    "rslora": "use_rslora",
    "dora": "use_dora",
    "sequence_length": "cutoff_len",
    "micro_batch": "per_device_train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
    "schedule": "lr_scheduler_type",
    "warmup": "warmup_ratio",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon",
}
PRESETS = {
    "attention": "q_proj,k_proj,v_proj,o_proj",
    "qv": "q_proj,v_proj",
    "mlp": "gate_proj,up_proj,down_proj",
    "all-linear": "all",
}
OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw8bit": "adamw_bnb_8bit", "lion": "lion_32bit"}
PRECISIONS = {
    "fp32": {"bf16": False, "fp16": False},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "int8": {"bf16": True, "quantization_bit": 8},
    "nf4": {"bf16": True, "quantization_bit": 4, "quantization_type": "nf4", "double_quantization": False},
    "nf4_double": {"bf16": True, "quantization_bit": 4, "quantization_type": "nf4", "double_quantization": True},
}


def configuration(base, trial):
    """The configuration `base` with a trial's parameters."""
    config = dict(base)
    params = dict(trial.params)
    params.pop("devices", None)
    ratio, global_batch = params.pop("alpha_ratio", None), params.pop("global_batch", None)
    config.update(PRECISIONS.get(params.pop("precision", None), {}))
    for name, value in params.items():
        if name == "target_modules":
            config["lora_target"] = PRESETS.get(value, value) if isinstance(value, str) else ",".join(value)
        elif name == "gradient_checkpointing":
            config["disable_gradient_checkpointing"] = value == "none"
        elif name == "optimizer":
            config["optim"] = OPTIMIZERS.get(value, value)
        elif name == "packing":
            config.update(packing=value, neat_packing=value)
        else:
            config[NAMES.get(name, name)] = value
    if ratio is not None:
        config["lora_alpha"] = ratio * config["lora_rank"]
    if global_batch is not None:
        share = config.get("per_device_train_batch_size", 1) * trial.processes
        if global_batch % share:
            raise Invalid(f"`global_batch` {global_batch} is not a multiple of {share}; lower `micro_batch`")
        config["gradient_accumulation_steps"] = global_batch // share
    if trial.steps:
        config["max_steps"] = trial.steps
    config.update(do_train=True, stage="sft", save_strategy="no", logging_steps=1, report_to="none",
                  seed=trial.seed % 2**32, include_num_input_tokens_seen="non_padding", overwrite_output_dir=True)
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
