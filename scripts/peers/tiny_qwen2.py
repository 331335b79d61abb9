#!/usr/bin/env python3
"""Writes a Qwen2 model of random weights whose tokenizer torchtune reads by itself, from the quickstart's words.

    scripts/peers/tiny_qwen2.py FOLDER
    scripts/peers/exported_rows.py PROGRAM --tool torchtune --python PY --base FOLDER --no-data

torchtune knows the numbers of Qwen2.5's special tokens and no others. So the vocabulary is as long as that one: behind the
words of the quickstart stand words that no text has. Its template for chats is the quickstart's.
"""

import array
import json
import pathlib
import random
import struct
import sys

BASE = pathlib.Path(__file__).resolve().parents[2] / "search_spaces" / "quickstart" / "base"
ORDINARY = 151_643
SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call>
<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>""".split()
#: How Qwen2's tokenizer parts texts into words.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "eos_token_id": ORDINARY + SPECIAL.index("<|im_end|>"),
    "torch_dtype": "float32",
}


def write_tokenizer(folder):
    tokenizer = json.loads((BASE / "tokenizer.json").read_text())
    model = tokenizer["model"]
    words = [word for word in model["vocab"] if word not in SPECIAL]
    words += [f"<|no text has this {number}|>" for number in range(ORDINARY - len(words))]
    model["vocab"] = {word: number for number, word in enumerate(words)}
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] = [
        {"id": ORDINARY + number, "content": word, **flags, "special": True} for number, word in enumerate(SPECIAL)
    ]
    tokenizer["normalizer"] = {"type": "NFC"}
    parts = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [parts, bytes_]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text((BASE / "tokenizer_config.json").read_text(), encoding="utf-8")


def write_weights(folder):
    hidden, inner, keys = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["hidden_size"] // 2
    layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    shapes.update({f"model.layers.0.{name}.weight": shape for name, shape in layer.items()})
    shapes.update({f"model.layers.0.self_attn.{name}_proj.bias": (layer[f"self_attn.{name}_proj"][0],) for name in "qkv"})
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"model.layers.0.{norm}.weight"] = (hidden,)
    chance, header, content = random.Random(1), {}, array.array("f")
    for name, shape in shapes.items():
        begin, count = 4 * len(content), shape[0] * (shape[1] if len(shape) > 1 else 1)
        is_norm = "norm" in name
        content.extend(1.0 if is_norm else chance.uniform(-0.05, 0.05) for _ in range(count))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, 4 * len(content)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content.tobytes())


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_tokenizer(folder)
    write_weights(folder)


if __name__ == "__main__":
    main()
