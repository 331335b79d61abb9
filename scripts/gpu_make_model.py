"""Writes a model directory with random weights, BF16: shapes of Llama-3.2-3B or smaller, and the tokenizer of another one.

    python3 gpu_make_model.py FOLDER TOKENIZER_FOLDER [hidden layers heads kv_heads inner]
"""

import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file


def main():
    folder, tokenizer = sys.argv[1:3]
    hidden, layers, heads, kv_heads, inner = map(int, sys.argv[3:8] or (3072, 28, 24, 8, 8192))
    vocabulary, head = 128256, hidden // heads
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(tokenizer):
        if name.startswith(("tokenizer", "special", "chat_template", "added")):
            shutil.copy(os.path.join(tokenizer, name), folder)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head, intermediate_size=inner,
        vocab_size=vocabulary, tie_word_embeddings=True, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=500000.0, hidden_act="silu", torch_dtype="bfloat16")
    other = json.load(open(os.path.join(tokenizer, "config.json")))
    config.update({key: other[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in other})
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = lambda *shape: (torch.randn(*shape, device=device) * 0.02).bfloat16().cpu()
    ones = lambda: torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "model.norm.weight": ones()}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for part, rows, columns in [("self_attn.q_proj", heads * head, hidden), ("self_attn.k_proj", kv_heads * head, hidden),
                                    ("self_attn.v_proj", kv_heads * head, hidden), ("self_attn.o_proj", hidden, heads * head),
                                    ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                                    ("mlp.down_proj", hidden, inner)]:
            tensors[f"{name}{part}.weight"] = matrix(rows, columns)
        tensors[name + "input_layernorm.weight"] = ones()
        tensors[name + "post_attention_layernorm.weight"] = ones()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


main()
