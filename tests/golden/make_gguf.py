"""A model directory whose weights lie in a GGUF file, written by gguf 0.19.0 from the toy Llama in ref_llama:
    python seeded.py make ref_llama && python make_gguf.py

Writes ref_gguf/ (config.json, model.gguf) and values.safetensors: some weights as gguf-py's own reader widens them, the rows of
queries and keys put back into the order of config.json's model. Names, order of rows and types are those of llama.cpp's converter.
"""

import pathlib
import shutil

import gguf
import numpy
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent
OUT = HERE / "ref_gguf"
HEADS = {"q_proj": 4, "k_proj": 2}
KINDS = gguf.GGMLQuantizationType
# Rows of 64 are whole blocks of 32; those of 176 are not.
TYPES = {
    "attn_q": KINDS.Q8_0,
    "attn_k": KINDS.Q4_0,
    "attn_v": KINDS.Q5_1,
    "attn_output": KINDS.Q4_1,
    "ffn_gate": KINDS.Q5_0,
    "ffn_up": KINDS.BF16,
    "ffn_down": KINDS.F16,
    "token_embd": KINDS.F16,
}
KEPT = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj"]

shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir()
shutil.copy(HERE / "ref_llama/model/config.json", OUT)
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
writer = gguf.GGUFWriter(OUT / "model.gguf", "llama")
writer.add_block_count(2)
writer.add_context_length(256)


def paired(weight, heads):
    """As LlamaModel.permute of convert_hf_to_gguf.py does it."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def restored(weight, heads):
    rows = weight.shape[0] // heads
    return weight.reshape(heads, rows // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


values = {}
for name, weight in load_file(HERE / "ref_llama/model/model.safetensors").items():
    stored = names.get_name(name, try_suffixes=(".weight",))
    module = name.removesuffix(".weight").split(".")[-1]
    if module in HEADS:
        weight = paired(weight, HEADS[module])
    kind = next((kind for part, kind in TYPES.items() if part in stored and weight.ndim > 1), KINDS.F32)
    codes = gguf.quants.quantize(weight, kind)
    writer.add_tensor(stored, codes, raw_dtype=kind)
    if ("layers.0." in name and any(kept in name for kept in KEPT)) or weight.ndim == 1:
        wide = gguf.quants.dequantize(codes, kind).astype(numpy.float32)
        values[name] = numpy.ascontiguousarray(restored(wide, HEADS[module]) if module in HEADS else wide)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file(values, OUT / "values.safetensors")
