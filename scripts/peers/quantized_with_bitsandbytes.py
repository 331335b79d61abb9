#!/usr/bin/env python3
"""Merges and quantizes a model with peft-tune, and opens what it wrote with transformers and bitsandbytes.

    pip install torch transformers peft bitsandbytes accelerate
    scripts/peers/quantized_with_bitsandbytes.py [--program target/release/peft-tune]

For each form: transformers loads the directory without a missing or unexpected tensor, every linear layer of the decoder is one of
bitsandbytes' whose codes are those of PEFT's merged weight as bitsandbytes quantizes it (but for sums that differ in the last
bit), and the logits are those of the same weights widened. Exits with 1 at the first difference.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import bitsandbytes as bnb
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
# Codes next to a bound may fall to either side.
OTHER_CODES = 1e-3
TOLERANCE = {"nf4": 2e-2, "int8": 5e-2}


def make(folder):
    """A random model of widths that are whole blocks, as bitsandbytes needs on CPUs, with an adapter that changes it."""
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=320, max_position_embeddings=128, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    tokenizer = ROOT / "search_spaces/quickstart/base"
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        (folder / "base" / name).write_bytes((tokenizer / name).read_bytes())
    model = get_peft_model(LlamaForCausalLM.from_pretrained(folder / "base"), LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    model.save_pretrained(folder / "adapter")


def widened(layer):
    """The weight of a quantized layer in F32, and its codes."""
    if isinstance(layer, bnb.nn.Linear4bit):
        return bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float(), layer.weight.data
    codes = layer.weight.data
    scales = layer.weight.SCB if layer.weight.SCB is not None else layer.state.SCB
    return codes.float() * (scales.float()[:, None] / 127.0), codes


def quantized(weight, form):
    """Its codes, by bitsandbytes."""
    if form == "nf4":
        return bnb.functional.quantize_4bit(weight, quant_type="nf4", blocksize=64)[0]
    return bnb.functional.int8_vectorwise_quant(weight.half() if weight.is_cuda else weight)[0]


def check(program, folder, form):
    output = folder / form
    subprocess.run([program, "merge", "--model", folder / "base", "--adapter", folder / "adapter", "--output", output,
                    "--quantize", form], check=True, capture_output=True)
    loaded, info = AutoModelForCausalLM.from_pretrained(output, device_map="cpu", dtype=torch.float32,
                                                        output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    base = LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload()
    layers, other, codes = 0, 0, 0
    for name, plain in merged.named_modules():
        if not isinstance(plain, torch.nn.Linear) or name == "lm_head":
            continue
        layer = loaded.get_submodule(name)
        kind = bnb.nn.Linear4bit if form == "nf4" else bnb.nn.Linear8bitLt
        assert isinstance(layer, kind), f"{name} is {type(layer)}"
        wide, found = widened(layer)
        expected = quantized(plain.weight.data, form)
        other += (found.flatten() != expected.flatten()).sum().item()
        codes += found.numel()
        plain.weight.data = wide
        layers += 1
    assert layers == 14, layers
    assert other <= OTHER_CODES * codes, f"{form}: {other} of {codes} codes differ"
    tokens = torch.arange(3, 67)[None]
    with torch.no_grad():
        expected, found = merged(tokens).logits, loaded(tokens).logits.float()
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    assert error < TOLERANCE[form], f"{form}: logits differ by {error:.1e}"
    print(f"{form}: {layers} layers, {other} of {codes} codes differ, logits within {error:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=lambda path: str(Path(path).resolve()), default=str(ROOT / "target/release/peft-tune"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder)
        for form in ["nf4", "int8"]:
            check(args.program, folder, form)


if __name__ == "__main__":
    sys.exit(main())
