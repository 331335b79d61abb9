"""A stand-in for PEFT."""

from types import SimpleNamespace


class LoraConfig(SimpleNamespace):
    """Settings of an adapter."""


def set_peft_model_state_dict(model, weights):
    """Starts the one number of an adapter from what a real adapter begins with, which has parts of both kinds."""
    parts = [[numbers for name, numbers in weights.items() if f".lora_{part}." in name] for part in "AB"]
    missing = [] if all(parts) and model.adapter is not None else ["adapter"]
    if not missing:
        model.adapter.value = abs(parts[0][0][0]) % 0.01
        model.adapter.size = 4 * sum(map(len, weights.values()))
    unexpected = [name for name in weights if ".lora_A." not in name and ".lora_B." not in name]
    return SimpleNamespace(missing_keys=missing, unexpected_keys=unexpected)
