#!/usr/bin/env python3
"""Writes a model directory with random weights, BF16: shapes of Llama's family, and the tokenizer of another one.

    python3 scripts/gpu/make_model.py FOLDER TOKENIZER_FOLDER [--untied] [hidden layers heads kv_heads inner]

`--untied` gives it a head of its own, as models of 8B parameters have it; the shape is that of Llama-3.2-3B where none is named.

Needs nothing but Python: where there is PyTorch or NumPy the values are normal ones, else they are uniform, of the same deviation.
"""

import json
import os
import random
import shutil
import struct
import sys

DEVIATION = 0.02


def drawing():
    """What draws so many BF16 values, as bytes."""
    try:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"

        def draw(count):
            values = (torch.randn(count, device=device) * DEVIATION).bfloat16().cpu()
            return values.view(torch.int16).numpy().tobytes()

        draw(1)
        return draw
    except (ImportError, RuntimeError):
        pass
    try:
        import numpy

        generator = numpy.random.default_rng(1)

        def draw(count):
            values = generator.standard_normal(count, dtype=numpy.float32) * numpy.float32(DEVIATION)
            return (values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()

        return draw
    except ImportError:
        pass
    # A million values, over and over from another place: drawing each by itself would take an hour.
    random.seed(1)
    values = [random.uniform(-1, 1) * DEVIATION * 3 ** 0.5 for _ in range(1 << 20)]
    block = b"".join(struct.pack("<f", value)[2:] for value in values)

    def draw(count):
        start = 2 * random.randrange(1 << 20)
        whole = block[start:] + block * (2 * count // len(block) + 1)
        return whole[:2 * count]

    return draw


def main():
    untied = "--untied" in sys.argv
    folder, tokenizer, *shape = (argument for argument in sys.argv[1:] if argument != "--untied")
    hidden, layers, heads, kv_heads, inner = map(int, shape or (3072, 28, 24, 8, 8192))
    vocabulary, head = 128256, hidden // heads
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(tokenizer):
        if name.startswith(("tokenizer", "special", "chat_template", "added")):
            shutil.copy(os.path.join(tokenizer, name), folder)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head, intermediate_size=inner,
        vocab_size=vocabulary, tie_word_embeddings=not untied, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=500000.0, hidden_act="silu", torch_dtype="bfloat16")
    other = json.load(open(os.path.join(tokenizer, "config.json")))
    config.update({key: other[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in other})
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=1)
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for part, rows, columns in [("self_attn.q_proj", heads * head, hidden), ("self_attn.k_proj", kv_heads * head, hidden),
                                    ("self_attn.v_proj", kv_heads * head, hidden), ("self_attn.o_proj", hidden, heads * head),
                                    ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                                    ("mlp.down_proj", hidden, inner)]:
            shapes[f"{name}{part}.weight"] = [rows, columns]
        shapes[name + "input_layernorm.weight"] = [hidden]
        shapes[name + "post_attention_layernorm.weight"] = [hidden]
    if untied:
        shapes["lm_head.weight"] = [vocabulary, hidden]
    write(os.path.join(folder, "model.safetensors"), shapes)


def write(path, shapes):
    """One tensor after the other: norms are ones, all else is drawn. The file has its name only when it is whole."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = drawing()
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            if len(shape) == 1:
                file.write(struct.pack("<f", 1.0)[2:] * shape[0])
                continue
            rows, columns = shape
            for first in range(0, rows, 4096):
                file.write(draw((min(rows, first + 4096) - first) * columns))
    os.replace(path + ".part", path)


main()
