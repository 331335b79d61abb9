"""A stand-in for PEFT."""

from types import SimpleNamespace


class LoraConfig(SimpleNamespace):
    """Settings of an adapter."""
