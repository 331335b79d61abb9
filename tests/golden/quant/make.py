"""Weights quantized by bitsandbytes 0.50.2 (torch 2.15.0, CPU): TORCHDYNAMO_DISABLE=1 python make.py

checkpoint.safetensors is what `save_pretrained` writes for one layer of each kind: `nf4.weight*`, `nf4_double.weight*`,
`int8.weight*` (LLM.int8(): one scale for each row). values.safetensors has the weights before (`*.w`), after
(`*.deq`, `*.deq_bf16`) and the 8-bit codes of blocks of 64 (`block64.*`), made as LLM.int8() makes those of a row.

Dequantization is that of bitsandbytes' generic backend (and of its CUDA kernel). Its CPU kernel for AVX-512 takes the
wrong constants where the row length is no multiple of the block: it counts floor(in / 64) blocks a row.
"""

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import save_file

torch.manual_seed(11)
checkpoint, values = {}, {}


def dequantize(layer, dtype):
    state = layer.weight.quant_state
    absmax = state.absmax
    if state.nested:
        absmax = F.dequantize_blockwise(absmax, state.state2) + state.offset
    packed = layer.weight.data.reshape(-1)
    return _dequantize_4bit_compute(packed, absmax, state.code, state.blocksize, state.shape, dtype)


for name, double, shape in [("nf4", False, (24, 80)), ("nf4_double", True, (136, 160))]:
    w = torch.randn(shape) * 0.02
    layer = bnb.nn.Linear4bit(shape[1], shape[0], bias=False, compress_statistics=double, quant_type="nf4")
    layer.weight = bnb.nn.Params4bit(w.clone(), requires_grad=False, compress_statistics=double, quant_type="nf4")
    layer = layer.to("cpu")
    if not layer.weight.bnb_quantized:
        layer.weight = layer.weight._quantize("cpu")
    for key, value in layer.state_dict().items():
        checkpoint[f"{name}.{key}"] = value.clone()
    values[f"{name}.w"] = w
    values[f"{name}.deq"] = dequantize(layer, torch.float32)
    values[f"{name}.deq_bf16"] = dequantize(layer, torch.bfloat16)

w = torch.randn(12, 80) * 0.02
codes, scales, _ = F.int8_vectorwise_quant(w.to(torch.float16))
checkpoint["int8.weight"] = codes
checkpoint["int8.SCB"] = scales
checkpoint["int8.weight_format"] = torch.tensor(0, dtype=torch.uint8)
values["int8.deq"] = F.int8_vectorwise_dequant(codes, scales)

w = torch.randn(20, 64) * 0.02
w[3] = 0
codes, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant.default(w[torch.arange(20) != 3])
values["block64.w"] = w
values["block64.codes"] = codes.to(torch.int16)
values["block64.scales"] = scales
save_file({key: value.contiguous() for key, value in checkpoint.items()}, "checkpoint.safetensors")
save_file({key: value.contiguous() for key, value in values.items()}, "values.safetensors")
for key, value in checkpoint.items():
    print(key, value.dtype, tuple(value.shape), bytes(value.tolist()) if "quant_state" in key else "")
