#!/usr/bin/env python3
"""Reads exported files with the tools that they are for, and refuses what those would drop.

    pip install peft trl          # CPU is enough; checked with peft 0.21.2, trl 1.16.0, transformers 5.23.0
    pip install deepspeed         # for deepspeed.json; DS_BUILD_OPS=0, behind torch, --no-build-isolation
    scripts/peers/exports.py tests/golden/exports/*
    scripts/peers/exports.py --tools axolotl,peft tests/golden/exports/*
    scripts/peers/exports.py --train tests/golden/exports/lora          # TRL: three real steps on the CPU

Each directory holds what `peft-tune export` wrote. A tool that is not installed is passed over with a line that says so;
--require names tools that must be there. Prints one line a file; exits with 1 if one is refused.

peft          LoraConfig.from_pretrained, no key that PEFT would drop, adapters of the right ranks on a small model
trl           the parser of `trl sft`, unknown keys refused; with --train a training of three steps
axolotl       every key is one of AxolotlInputConfig's, and validate_config accepts the whole (checked with 0.19.0)
llamafactory  get_train_args, which refuses unknown keys; data sets by the names in dataset_info.json (0.9.5)
torchtune     config.validate: every component exists and takes its arguments (0.6.1)
unsloth       the script parses, and every argument is one that unsloth's functions and SFTConfig have (2026.10.9)
deepspeed     DeepSpeed takes the file that TRL's names, with what transformers fills in; with --train a training of three steps that
              updates on the host, for which it compiles its kernels (ninja, a C++ compiler; 0.19.8)
"""

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["DISABLE_VERSION_CHECK"] = "1"
warnings.filterwarnings("ignore")

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What `peft-tune export --check` asks of the tools; here more is asked.
sys.dont_write_bytecode = True  # not beside the sources
sys.path.insert(0, str(ROOT / "src/cli/export"))
import installed  # noqa: E402
from chosen_names import among  # noqa: E402


def tiny_model(vocabulary=64):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def adapter_of(directory):
    return json.loads((directory / "adapter_config.json").read_text())


def check_peft(directory, _):
    from peft import get_peft_model

    config = installed.adapter_of_peft(directory)
    written = adapter_of(directory)
    model = get_peft_model(tiny_model(), config)
    adapters = {name: p for name, p in model.named_parameters() if "lora_A" in name and name.endswith("weight")}
    assert adapters and all(p.requires_grad for p in adapters.values()), "no trainable adapters"
    ranks = {p.shape[0] for p in adapters.values()}
    expected = {written["r"], *written["rank_pattern"].values()}
    assert ranks == expected, f"ranks {ranks}, not {expected}"
    modules = {name.split(".lora_A")[0].rsplit(".", 1)[1] for name in adapters}
    return f"r={config.r} alpha={config.lora_alpha} on {','.join(sorted(modules))}"


def check_trl(directory, options):
    training, config, data, _ = installed.arguments_of_trl(directory)
    written = adapter_of(directory)
    for ours, theirs in ((written["r"], config.r), (written["lora_alpha"], config.lora_alpha)):
        assert ours == theirs, f"{ours} became {theirs}"
    targets = config.target_modules
    if targets != "all-linear":
        assert set(targets) == set(written["target_modules"]), targets
    for name in ("learning_rate", "weight_decay", "max_grad_norm", "adam_epsilon", "adam_beta2"):
        assert isinstance(getattr(training, name), float), f"{name} is {getattr(training, name)!r}"
    assert isinstance(training.gradient_checkpointing, bool)
    assert data.datasets[0].path == "json" or directory.name == "odd"
    trained = train_with_trl(training, config) if options.train else ""
    return (
        f"optim={training.optim} lr={training.learning_rate} warmup={training.warmup_steps} "
        f"schedule={training.lr_scheduler_type} max_steps={training.max_steps} epochs={training.num_train_epochs}{trained}"
    )


def train_with_trl(training, peft_config):
    """Three steps of the very arguments, on a random model of a few thousand weights and the data of the tests."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests/fixtures/tokenizer")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = load_dataset("json", data_files=str(ROOT / "tests/fixtures/data/text.jsonl"), split="train")
    with tempfile.TemporaryDirectory() as folder:
        training.max_steps, training.output_dir = 3, folder
        training.bf16 = training.fp16 = False
        training.save_strategy = training.eval_strategy = "no"
        training.assistant_only_loss = False
        training.logging_steps, training.report_to = 1, []
        model = tiny_model(len(tokenizer))
        trainer = SFTTrainer(
            model=model, args=training, train_dataset=rows, processing_class=tokenizer, peft_config=peft_config
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert trainer.state.global_step == 3 and len(losses) == 3, trainer.state.log_history
    return f" trained 3 steps, losses {losses}"


def check_axolotl(directory, _):
    config = installed.config_of_axolotl(directory)
    assert config.lora_r == adapter_of(directory)["r"]
    assert isinstance(config.learning_rate, float), config.learning_rate
    return f"adapter={config.adapter} r={config.lora_r} alpha={config.lora_alpha} optimizer={config.optimizer}"


def check_llamafactory(directory, _):
    model, training, finetuning, sets = installed.arguments_of_llamafactory(directory)
    assert finetuning.lora_rank == adapter_of(directory)["r"]
    assert all(pathlib.Path(one.dataset_name).is_absolute() for one in sets), sets
    return (
        f"rank={finetuning.lora_rank} alpha={finetuning.lora_alpha} target={finetuning.lora_target} "
        f"optim={training.optim} bits={model.quantization_bit} sets={len(sets)}"
    )


def stand_in_for_old_torchao():
    """torchtune's last release asks for modules that torchao has dropped since. Validation runs no kernel of theirs, so
    that empty classes and a `to_nf4` that changes nothing are enough to import it."""
    names = {
        "torchao.dtypes": ["TensorCoreTiledLayout"],
        "torchao.quantization": ["int4_weight_only", "int8_dynamic_activation_int4_weight", "quantize_"],
        "torchao.quantization.qat": ["Int4WeightOnlyQATQuantizer", "Int8DynActInt4WeightQATQuantizer"],
        "torchao.dtypes.nf4tensor": ["NF4Tensor", "implements", "linear_nf4"],
        "torchao.quantization.qat.linear": ["disable_4w_fake_quant", "disable_8da4w_fake_quant",
                                            "enable_4w_fake_quant", "enable_8da4w_fake_quant"],
        "torchao.quantization.qat.fake_quantizer": ["FakeQuantizer"],
        "torchao.quantization.qat.api": ["FakeQuantizeConfig"],
    }
    for name, attributes in names.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            module = sys.modules[name] = types.ModuleType(name)
        for attribute in attributes:
            if not hasattr(module, attribute):
                setattr(module, attribute, type(attribute, (), {"__init__": lambda self, *_, **__: None}))
    nf4 = sys.modules["torchao.dtypes.nf4tensor"]
    if not hasattr(nf4, "to_nf4"):
        nf4.to_nf4 = lambda tensor, **_: tensor
        nf4.implements = lambda *_: lambda function: function


def check_torchtune(directory, _):
    stand_in_for_old_torchao()
    from torchtune import config as torchtune_config

    path = directory / "torchtune.yaml"
    if not path.is_file():
        return "not exported: " + refusal(directory, "torchtune")
    written = installed.config_of_torchtune(directory)
    # `validate` lets missing arguments pass; the model's have to be complete.
    component = written.model._component_.rsplit(".", 1)
    builder = getattr(importlib.import_module(component[0]), component[1])
    import inspect

    inspect.signature(builder).bind(**{key: value for key, value in written.model.items() if key != "_component_"})
    import torch

    with torch.device("meta"):
        model = torchtune_config.instantiate(written.model)
    adapters = [name for name, _ in model.named_parameters() if "lora_a" in name]
    assert adapters, "no adapters"
    return f"rank={written.model.lora_rank} alpha={written.model.lora_alpha} adapters={len(adapters)}"


def check_unsloth(directory, _):
    return f"{installed.calls_of_unsloth(directory)} calls with known arguments"


def check_deepspeed(directory, options):
    if not (directory / "deepspeed.json").is_file():
        return "no updates on the host"
    # The places of the only rank, which a launcher would say.
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    from deepspeed.runtime.config import DeepSpeedConfig

    training, config, _, _ = installed.arguments_of_trl(directory)
    filled = training.hf_deepspeed_config
    filled.trainer_config_finalize(training, tiny_model(), num_training_steps=10)
    assert "auto" not in json.dumps(filled.config), filled.config
    read = DeepSpeedConfig(filled.config)
    device = read.zero_config.offload_optimizer.device
    assert (read.zero_optimization_stage, device) == (2, "cpu"), f"stage {read.zero_optimization_stage} on {device}"
    assert read.gradient_accumulation_steps == training.gradient_accumulation_steps
    assert (read.gradient_clipping or None) == training.max_grad_norm
    optimizer = read.optimizer_params
    found = (read.optimizer_name, optimizer["lr"], tuple(optimizer["betas"]), optimizer["eps"], optimizer["weight_decay"])
    betas = (training.adam_beta1, training.adam_beta2)
    assert found == ("adamw", training.learning_rate, betas, training.adam_epsilon, training.weight_decay), found
    trained = train_with_trl(training, config) if options.train else ""
    return f"{read.optimizer_name} at {optimizer['lr']}, updates on {getattr(device, 'value', device)}{trained}"


def refusal(directory, tool):
    lines = (directory / "warnings.txt").read_text().splitlines()
    told = [line for line in lines if line.startswith(f"{tool}: refused")]
    assert told, f"no {tool} file, and no word why"
    return told[0]


TOOLS = {
    "peft": check_peft,
    "trl": check_trl,
    "axolotl": check_axolotl,
    "llamafactory": check_llamafactory,
    "torchtune": check_torchtune,
    "unsloth": check_unsloth,
    "deepspeed": check_deepspeed,
}


def deepspeed_is_missing(tool, directory):
    """Whether a tool whose arguments are transformers' would ask for the package in vain."""
    asks = tool in ("trl", "llamafactory") and (directory / "deepspeed.json").is_file()
    return asks and importlib.util.find_spec("deepspeed") is None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    parser.add_argument("--tools", type=among("tool", TOOLS), default=list(TOOLS), help="names with commas between")
    parser.add_argument("--require", type=among("tool", TOOLS), default=[], help="names with commas between")
    parser.add_argument("--train", action="store_true", help="train three steps with TRL")
    options = parser.parse_args()
    directories = [directory.resolve() for directory in options.directories]
    failed = False
    for name in options.tools:
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed, passed over")
            failed |= name in options.require
            continue
        for directory in directories:
            # Files name one another as the tool reads them where it is started.
            os.chdir(directory)
            if deepspeed_is_missing(name, directory):
                print(f"{directory.name} {name}: names deepspeed.json, and deepspeed is not installed; passed over")
                continue
            try:
                print(f"{directory.name} {name}: accepted, {TOOLS[name](directory, options)}")
            except BaseException as error:
                print(f"{directory.name} {name}: REFUSED, {type(error).__name__}: {str(error)[:2000]}")
                failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
