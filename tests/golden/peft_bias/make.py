"""Adapters with trained biases and a regular expression for targets, as PEFT 0.21.2 writes them: python make.py

The base is a Qwen2 of two layers with random weights, whose q, k and v have biases.
"""

import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(2)
config = Qwen2Config(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
for name, settings in {
    "all": dict(bias="all", target_modules=["q_proj"]),
    "lora_only": dict(bias="lora_only", target_modules=["q_proj", "o_proj"]),
    "expression": dict(target_modules=r".*\.(q|v)_proj", use_dora=True, rank_pattern={"q_proj": 2, "absent": 3}),
}.items():
    base = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter_name, parameter in base.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_()
    model = get_peft_model(base, LoraConfig(r=4, task_type="CAUSAL_LM", **settings))
    model.save_pretrained(name)
    os.remove(f"{name}/README.md")
