#!/usr/bin/env python3
"""Bytes that autograd saves for one more decoder layer, by setting: what transformers and PEFT keep of it.

Made with torch 2.15, transformers 5.23 and peft 0.21.2 on the CPU: `python3 stack_saved.py`. Storages are counted once, and
parameters are left out. The unit test of `crates/core/src/predict/stack/layer.rs` has the figures.
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def build(layers, attention, dtype, targets, dropout, kv_heads):
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=kv_heads,
        intermediate_size=192, vocab_size=512, tie_word_embeddings=False, attn_implementation=attention, use_cache=False,
    )
    model = LlamaForCausalLM(config).to(dtype)
    if targets is not None:
        lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules=targets)
        model = get_peft_model(model, lora)
        model.enable_input_require_grads()
    return model.train()


def saved(layers, autocast, *setting):
    torch.manual_seed(0)
    model = build(layers, *setting)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # Held, so that no address is used twice.
        return tensor

    ids = torch.randint(0, 512, (2, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(input_ids=ids, labels=ids)
    return sum(size for size, _ in seen.values())


for name, autocast, *setting in [
    ("bf16 qkvo eager", False, "eager", torch.bfloat16, ATTENTION, 0.0, 8),
    ("bf16 all eager gqa", False, "eager", torch.bfloat16, "all-linear", 0.0, 4),
    ("bf16 all eager gqa dropout", False, "eager", torch.bfloat16, "all-linear", 0.1, 4),
    ("bf16 autocast all eager", True, "eager", torch.bfloat16, "all-linear", 0.0, 8),
    ("fp32 autocast all eager", True, "eager", torch.float32, "all-linear", 0.0, 8),
    ("fp32 all sdpa", False, "sdpa", torch.float32, "all-linear", 0.0, 8),
    ("bf16 qkvo sdpa", False, "sdpa", torch.bfloat16, ATTENTION, 0.0, 8),
    ("bf16 full eager", False, "eager", torch.bfloat16, None, 0.0, 8),
]:
    print(name, saved(2, autocast, *setting) - saved(1, autocast, *setting))
