"""Loading of models."""

import json
import os

from trl.model import Model


def create_model_from_path(folder, device_map=None, attn_implementation=None, **_):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return Model(config["vocab_size"] * config["hidden_size"], attn_implementation or "sdpa")
