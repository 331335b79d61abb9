"""Model directories as bitsandbytes 0.50.2 and transformers 5.23.0 write them, of the toy Llama in ref_llama:
    python seeded.py make ref_llama
    TORCHDYNAMO_DISABLE=1 python make_bitsandbytes.py && python seeded.py find ref_bitsandbytes

Writes ref_bitsandbytes/{nf4,nf4_double,int8}/ (config.json, model.safetensors) and values.safetensors, samples
(`sample.py`) of the F32 values of some of their weights, named `<directory>.<tensor>`. 4-bit codes are widened by bitsandbytes' generic backend (see
make_qlora.py for why), 8-bit rows by code * constant / 127.
"""

import os

import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.functional import dequantize_blockwise
from safetensors.torch import save_file
from sample import sampled
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

OUT = "ref_bitsandbytes"
CONFIGS = {
    "nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32),
    "nf4_double": BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    ),
    "int8": BitsAndBytesConfig(load_in_8bit=True),
}


def widened(module):
    weight = module.weight
    if not hasattr(weight, "quant_state"):
        return weight.CB.float() * weight.SCB[:, None] * 7.874015718698502e-3
    state = weight.quant_state
    absmax = state.absmax
    if state.nested:
        absmax = dequantize_blockwise(absmax, state.state2) + state.offset
    return _dequantize_4bit_compute(weight.data.reshape(-1), absmax, state.code, 64, state.shape, torch.float32)


values = {}
for name, config in CONFIGS.items():
    model = AutoModelForCausalLM.from_pretrained("ref_llama/model", quantization_config=config, dtype=torch.float32)
    model.save_pretrained(f"{OUT}/{name}")
    generation = f"{OUT}/{name}/generation_config.json"
    if os.path.exists(generation):
        os.remove(generation)
    modules = dict(model.named_modules())
    for tensor in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        values[f"{name}.{tensor}.weight"] = widened(modules[tensor]).contiguous()
save_file(sampled(values), f"{OUT}/values.safetensors")
