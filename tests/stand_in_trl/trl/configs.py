"""Configs with what a worker reads of them, and the parser of the files of `trl`."""

import json
from types import SimpleNamespace


#: Fields that the arguments of other trainers lack.
OF_SFT = ("packing", "eos_token", "dataset_kwargs", "assistant_only_loss", "chat_template_path")
OF_REFERENCES = ("precompute_ref_log_probs", "pad_to_multiple_of", "pad_token")


class ScriptArguments(SimpleNamespace):
    pass


class DatasetMixtureConfig(SimpleNamespace):
    pass


class ModelConfig(SimpleNamespace):
    DEFAULTS = {
        "model_name_or_path": None,
        "model_revision": "main",
        "dtype": "float32",
        "attn_implementation": None,
        "use_peft": False,
        "use_dora": False,
        "use_rslora": False,
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "lora_target_modules": None,
        "load_in_8bit": False,
        "load_in_4bit": False,
    }


class SFTConfig(SimpleNamespace):
    DEFAULTS = {
        "learning_rate": 2e-5,
        "max_steps": -1,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": True,
        "train_sampling_strategy": "random",
        "seed": 42,
        "packing": False,
        "bf16": False,
        "fp16": False,
        "torch_compile": False,
        "use_liger_kernel": False,
        "pad_to_multiple_of": None,
        "eos_token": None,
        "pad_token": None,
        "trust_remote_code": False,
        "fsdp": None,
        "deepspeed": None,
        "dataset_kwargs": None,
        "model_init_kwargs": None,
        "assistant_only_loss": False,
        "chat_template_path": None,
    }


class DPOConfig(SimpleNamespace):
    DEFAULTS = {
        **{name: value for name, value in SFTConfig.DEFAULTS.items() if name not in OF_SFT},
        "beta": 0.1,
        "max_length": 1024,
        "disable_dropout": True,
        "precompute_ref_log_probs": False,
        "dataset_num_proc": None,
    }


class KTOConfig(SimpleNamespace):
    DEFAULTS = {**DPOConfig.DEFAULTS, "train_sampling_strategy": "sequential"}


class ORPOConfig(SimpleNamespace):
    DEFAULTS = {name: value for name, value in DPOConfig.DEFAULTS.items() if name not in OF_REFERENCES}


class TrlParser:
    def __init__(self, classes):
        assert len(classes) == 4 and classes[1] in (SFTConfig, DPOConfig, KTOConfig, ORPOConfig)
        assert (classes[0], *classes[2:]) == (ScriptArguments, ModelConfig, DatasetMixtureConfig)
        self.training = classes[1]

    def parse_args_and_config(self, words, fail_with_unknown_args):
        assert words[0] == "--config" and fail_with_unknown_args
        with open(words[1], encoding="utf-8") as file:
            said = {key: value_of(text) for key, text in keys_of(file)}
        said |= {name.removeprefix("--"): value_of(text) for name, text in zip(words[2::2], words[3::2])}
        of_model = {key: value for key, value in said.items() if key in ModelConfig.DEFAULTS}
        of_training = {key: value for key, value in said.items() if key not in of_model}
        training = self.training(**{**self.training.DEFAULTS, **of_training})
        return ScriptArguments(), training, ModelConfig(**{**ModelConfig.DEFAULTS, **of_model}), DatasetMixtureConfig()


def keys_of(lines):
    """The keys of a file with the text behind them; those of lines that are indented are passed over."""
    for line in lines:
        if line.strip() and not line.startswith((" ", "#", "-")):
            key, _, text = line.partition(":")
            yield key, text.strip()


def value_of(text):
    if text.startswith("["):
        return [value_of(word.strip()) for word in text[1:-1].split(",") if word.strip()]
    try:
        return json.loads(text)
    except ValueError:
        return text or None
