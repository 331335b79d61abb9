"""A stand-in for TRL: its parser, its configs, and a trainer that goes over the rows as that does."""

from peft import LoraConfig

from .configs import (  # noqa: F401
    DatasetMixtureConfig,
    DPOConfig,
    KTOConfig,
    ModelConfig,
    ScriptArguments,
    SFTConfig,
    TrlParser,
)
from .preference_trainers import DPOTrainer, KTOTrainer  # noqa: F401
from .sft_trainer import SFTTrainer  # noqa: F401


def get_peft_config(model):
    if not model.use_peft:
        return None
    return LoraConfig(r=model.lora_r, lora_alpha=model.lora_alpha, target_modules=model.lora_target_modules)


def get_quantization_config(model):
    return None
