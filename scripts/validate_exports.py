"""Reads exported files with the tools that they are for: PEFT and TRL themselves.

    pip install peft trl          # CPU is enough; checked with peft 0.21.2, trl 1.16.0, transformers 5.23.0
    python scripts/validate_exports.py tests/golden/exports/*

Each argument is a directory with adapter_config.json and trl_sft.yaml. For PEFT the config is loaded with
LoraConfig.from_pretrained, must hold no key that PEFT would drop, and is put on a small model whose adapter parameters
must then be trainable and of the shape that rank and target modules say. For TRL the file goes through the parser of
`trl sft`, with unknown keys refused. Prints one line a file; exits with 1 if one is refused.
"""
import dataclasses
import json
import os
import pathlib
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")


def tiny_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def check_peft(directory):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig.from_pretrained(directory)
    written = json.loads((directory / "adapter_config.json").read_text())
    dropped = set(written) - {field.name for field in dataclasses.fields(config)}
    assert not dropped, f"keys that PEFT drops: {dropped}"
    model = get_peft_model(tiny_model(), config)
    adapters = {name: p for name, p in model.named_parameters() if "lora_A" in name and name.endswith("weight")}
    assert adapters and all(p.requires_grad for p in adapters.values()), "no trainable adapters"
    ranks = {p.shape[0] for p in adapters.values()}
    expected = {written["r"], *written["rank_pattern"].values()}
    assert ranks == expected, f"ranks {ranks}, not {expected}"
    modules = {name.split(".lora_A")[0].rsplit(".", 1)[1] for name in adapters}
    return f"r={config.r} alpha={config.lora_alpha} on {','.join(sorted(modules))}"


def check_trl(directory):
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser, get_peft_config

    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    arguments = ["--config", str(directory / "trl_sft.yaml"), "--use_cpu", "true"]
    _, training, model, data = parser.parse_args_and_config(args=arguments, fail_with_unknown_args=True)
    written = json.loads((directory / "adapter_config.json").read_text())
    config = get_peft_config(model)
    for ours, theirs in ((written["r"], config.r), (written["lora_alpha"], config.lora_alpha)):
        assert ours == theirs, f"{ours} became {theirs}"
    targets = config.target_modules
    if targets != "all-linear":
        assert set(targets) == set(written["target_modules"]), targets
    for name in ("learning_rate", "weight_decay", "max_grad_norm", "adam_epsilon", "adam_beta2"):
        assert isinstance(getattr(training, name), float), f"{name} is {getattr(training, name)!r}"
    assert isinstance(training.gradient_checkpointing, bool)
    assert data.datasets[0].path == "json" or directory.name == "odd"
    return (
        f"optim={training.optim} lr={training.learning_rate} warmup={training.warmup_steps} "
        f"schedule={training.lr_scheduler_type} max_steps={training.max_steps} epochs={training.num_train_epochs}"
    )


def main():
    failed = False
    for directory in map(pathlib.Path, sys.argv[1:]):
        for tool in (check_peft, check_trl):
            name = tool.__name__.removeprefix("check_")
            try:
                print(f"{directory.name} {name}: accepted, {tool(directory)}")
            except BaseException as error:
                print(f"{directory.name} {name}: REFUSED, {type(error).__name__}: {error}")
                failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
