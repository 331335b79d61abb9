"""Losses of 20 AdamW steps on the base of ref_llama quantized to NF4 (bitsandbytes 0.50.2, PEFT 0.21.2, torch 2.15.0):
    python seeded.py make ref_llama && TORCHDYNAMO_DISABLE=1 python make_qlora.py

`qlora_nf4_dq*` in ref_variants/variants.json were made with bitsandbytes' CPU kernel for AVX-512, which takes the wrong
block constants where a row is no multiple of 64 elements (down_proj, 176: 2.6 times the error of the quantization
itself). Here the same codes and constants are widened by bitsandbytes' generic backend, as its CUDA kernel does it.
"""

import json

import bitsandbytes.functional as F
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
SOURCE = "ref_llama"
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
weights = load_file(f"{SOURCE}/model/model.safetensors")
ids = load_file(f"{SOURCE}/inputs.safetensors")["input_ids"]


def widened(weight, double):
    packed, state = F.quantize_4bit(weight, blocksize=64, compress_statistics=double, quant_type="nf4")
    absmax = state.absmax
    if double:
        absmax = F.dequantize_blockwise(absmax, state.state2) + state.offset
    return _dequantize_4bit_compute(packed.reshape(-1), absmax, state.code, 64, weight.shape, torch.float32)


def losses(double):
    base = AutoModelForCausalLM.from_pretrained(f"{SOURCE}/model", dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, f"{SOURCE}/adapter_init", is_trainable=True).train()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            if name.endswith(tuple(f"{linear}.weight" for linear in LINEARS)):
                key = "base_model.model." + name.replace(".weight", ".base_layer.weight")
                parameters[key].copy_(widened(weight, double))
    trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, foreach=False)
    found = []
    for _ in range(20):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found + [model(input_ids=ids, labels=ids).loss.item()]


json.dump(
    {f"qlora_nf4_dq{int(double)}_fp32_compute": {"losses": losses(double)} for double in (False, True)},
    open("ref_variants/qlora.json", "w"),
    indent=1,
)
