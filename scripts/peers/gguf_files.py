#!/usr/bin/env python3
"""Opens GGUF files that `peft-tune merge --format gguf` wrote with gguf-py and with transformers, and compares weights and tokens.

    scripts/peers/gguf_files.py GGUF_DIRECTORY SAFETENSORS_DIRECTORY

The second directory is the same merge in safetensors form. transformers reads names, order of rows, configuration and vocabulary
from the file alone. Needs torch, transformers and gguf.
"""

import sys
from pathlib import Path

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ["The quick brown fox, 12 + 345 = 357.\n\n  It's  fine.", "Ünïcödé → 漢字 🙂", "<|im_start|>user\nhello<|im_end|>"]


def main():
    packed, plain = (Path(argument) for argument in sys.argv[1:3])
    reader = gguf.GGUFReader(packed / "model.gguf")
    print(f"gguf-py: {len(reader.tensors)} tensors, {len(reader.fields)} fields")
    left = AutoModelForCausalLM.from_pretrained(packed, gguf_file="model.gguf", dtype=torch.float32)
    right = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    values = dict(left.state_dict())
    worst = 0.0
    for name, value in right.state_dict().items():
        difference = (values.pop(name) - value).abs().max() / value.abs().max()
        worst = max(worst, difference.item())
    print(f"transformers: worst relative difference of a weight {worst:.1e}, {len(values)} more tensors")
    ids = torch.arange(24)[None] * 7 % 200
    with torch.no_grad():
        a, b = left(ids).logits, right(ids).logits
    gap = ((a - b).norm() / b.norm()).item()
    print(f"transformers: relative difference of logits {gap:.1e}")
    ours = AutoTokenizer.from_pretrained(plain)
    theirs = AutoTokenizer.from_pretrained(packed, gguf_file="model.gguf")
    same = all(ours(text)["input_ids"] == theirs(text)["input_ids"] for text in TEXTS)
    print(f"transformers: tokens {'are the same' if same else 'DIFFER'}")
    sys.exit(not (worst < 0.02 and gap < 0.02 and same and not values))


if __name__ == "__main__":
    main()
