"""Model directories whose weights compressed-tensors 0.20.0, GPTQModel 7.7.0 and AutoAWQ 0.2.9 pack, of one random Llama:
    CUDA_VISIBLE_DEVICES= python make_packed.py

Writes ref_packed/<format>/ (config.json, model.safetensors) and values.safetensors: samples (`sample.py`) of weights as the
formats' own readers widen them, named `<format>.<tensor>`. Packed by the libraries, widened by compressed-tensors' decompressors, GPTQModel's
`TorchLinear.dequantize_weight`, AutoAWQ's `dequantize_gemm` and, for FP8 in tiles, transformers' rule (code times scale in F32).
"""

import importlib.util
import json
import pathlib
import shutil

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from sample import sampled
from transformers import AutoModelForCausalLM, LlamaConfig

OUT = pathlib.Path(__file__).parent / "ref_packed"
CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
LINEARS += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
KEPT = ["self_attn.k_proj", "mlp.down_proj"]

torch.manual_seed(7)
model = AutoModelForCausalLM.from_config(CONFIG).to(torch.bfloat16)
state = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
values = {}


def narrowest(value):
    """The same values in 16 bits, where those hold them."""
    narrow = (value.to(kind) for kind in (torch.bfloat16, torch.float16))
    return next((one for one in narrow if torch.equal(one.float(), value)), value)


def write(name, pack, quantization):
    """`pack` gives the tensors of a layer by what stands behind its name, and its weight as read."""
    folder = OUT / name
    folder.mkdir(parents=True)
    tensors = dict(state)
    for linear in LINEARS:
        module = f"model.layers.0.{linear}"
        parts, value = pack(tensors.pop(f"{module}.weight"))
        tensors.update({f"{module}.{part}": tensor.detach().contiguous() for part, tensor in parts.items()})
        if linear in KEPT:
            values[f"{name}.{module}.weight"] = narrowest(value.detach().float().contiguous())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**CONFIG.to_dict(), "architectures": ["LlamaForCausalLM"], "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def compressed(name, form, activations=False, **arguments):
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)

    def blocks(weight):
        """Smallest and largest value of the part of each scale."""
        wide, (rows, columns) = weight.float(), weight.shape
        if args.strategy == "tensor":
            return wide.min().reshape(1), wide.max().reshape(1)
        if args.strategy == "channel":
            return wide.amin(1, keepdim=True), wide.amax(1, keepdim=True)
        if args.strategy == "block":
            height, width = args.block_structure
            tiles = [
                [wide[y : y + height, x : x + width] for x in range(0, columns, width)] for y in range(0, rows, height)
            ]
            pick = lambda which: torch.stack([torch.stack([which(tile) for tile in row]) for row in tiles])
            return pick(torch.min), pick(torch.max)
        groups = wide.reshape(rows, -1, args.group_size)
        return groups.amin(2), groups.amax(2)

    def pack(weight):
        low, high = blocks(weight)
        parts = {"weight": weight}
        extra = {}
        if form == "nvfp4-pack-quantized":
            extra["global_scale"] = generate_gparam(low.min().reshape(1), high.max().reshape(1))
            parts["weight_global_scale"] = extra["global_scale"]
        scale, zero = calculate_qparams(low, high, args, **extra)
        parts["weight_scale"] = scale if form.endswith("fp4-pack-quantized") else scale.to(torch.bfloat16)
        parts["weight_zero_point"] = zero
        packed = compressor.compress(parts, scheme)
        value = compressor.decompress(dict(packed), scheme)["weight"]
        if activations:
            packed["input_scale"] = torch.tensor([0.25], dtype=torch.bfloat16)
        return packed, value

    groups = {"group_0": {"targets": ["Linear"], "weights": args.model_dump(mode="json")}}
    write(
        name,
        pack,
        {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]},
    )


def tiles(weight):
    """FP8 with a scale for each tile of 32 x 64, as DeepSeek and Qwen publish it with 128 x 128."""
    rows, columns = weight.shape
    height, width = 32, 64
    scales = torch.zeros(-(-rows // height), -(-columns // width))
    codes = torch.zeros_like(weight, dtype=torch.float8_e4m3fn)
    value = torch.zeros(rows, columns)
    for y, x in ((y, x) for y in range(scales.shape[0]) for x in range(scales.shape[1])):
        part = (slice(y * height, (y + 1) * height), slice(x * width, (x + 1) * width))
        scales[y, x] = weight[part].float().abs().max() / 448
        codes[part] = (weight[part].float() / scales[y, x]).to(torch.float8_e4m3fn)
        value[part] = codes[part].float() * scales[y, x]
    return {"weight": codes, "weight_scale_inv": scales}, value


def gptq(bits, group, reordered, form):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    def pack(weight):
        rows, columns = weight.shape
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = weight.float()
        order = torch.arange(columns) // group
        if reordered:
            order = order[torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
        scales, zeros = torch.zeros(rows, columns // group), torch.zeros(rows, columns // group)
        for index in range(columns // group):
            part = weight.float()[:, order == index]
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            # A zero point of 0 has no place in the first form.
            scales[:, index] = ((high - low) / (2**bits - 2)).half().float()
            zeros[:, index] = torch.round(-low / scales[:, index]).clamp(1, 2**bits - 1)
        layer = TorchLinear(
            bits=bits, group_size=group, sym=False, desc_act=reordered, in_features=columns, out_features=rows, bias=False
        )
        layer.pack(linear, scales, zeros, order.to(torch.int32))
        layer.post_init()
        value = layer.dequantize_weight().T
        parts = {name: getattr(layer, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
        if form == "gptq":
            less = sum(1 << shift for shift in range(0, 32, bits))
            words = parts["qzeros"].to(torch.int64) - less
            parts["qzeros"] = words.to(torch.int32)
            parts["bias"] = torch.zeros(rows, dtype=torch.float16)
        return parts, value

    return pack


def awq(weight):
    path = importlib.util.find_spec("awq").submodule_search_locations[0] + "/utils/packing_utils.py"
    spec = importlib.util.spec_from_file_location("packing_utils", path)
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    group, bits = 32, 4
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, -1, group)
    low, high = groups.amin(2), groups.amax(2)
    scales = ((high - low) / 15).half().float()
    zeros = torch.round(-low / scales).clamp(0, 15)
    each = lambda values: values.repeat_interleave(group, dim=1)
    codes = torch.round(weight.float() / each(scales) + each(zeros)).clamp(0, 15)

    def words(integers):
        """(n, outputs) in words of eight, in AWQ's order."""
        integers = integers.to(torch.int64).reshape(integers.shape[0], -1, 8)[:, :, utils.AWQ_ORDER]
        shifted = integers << (bits * torch.arange(8))
        return shifted.sum(2).to(torch.int32)

    parts = {"qweight": words(codes.T), "qzeros": words(zeros.T), "scales": scales.T.contiguous().half()}
    return parts, utils.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], bits, group).T


shutil.rmtree(OUT, ignore_errors=True)
INT, FLOAT = {"type": "int", "symmetric": True}, {"type": "float", "symmetric": True}
compressed("fp8_tensor", "float-quantized", activations=True, num_bits=8, strategy="tensor", **FLOAT)
compressed("fp8_channel", "float-quantized", num_bits=8, strategy="channel", **FLOAT)
compressed("fp8_block", "float-quantized", num_bits=8, strategy="block", block_structure=[32, 64], **FLOAT)
compressed("int8", "int-quantized", num_bits=8, strategy="channel", **INT)
compressed("int4", "pack-quantized", num_bits=4, strategy="group", group_size=32, **INT)
compressed("int4_zeros", "pack-quantized", num_bits=4, strategy="group", group_size=32, type="int", symmetric=False)
compressed("int8_packed", "pack-quantized", num_bits=8, strategy="channel", **INT)
compressed("nvfp4", "nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16, **FLOAT)
compressed("mxfp4", "mxfp4-pack-quantized", num_bits=4, strategy="group", group_size=32, **FLOAT)
write("fp8_tiles", tiles, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 64]})
common = {"quant_method": "gptq", "sym": False}
write("gptq", gptq(4, 32, False, "gptq"), {**common, "bits": 4, "group_size": 32, "desc_act": False})
ordered = {**common, "bits": 4, "group_size": 32, "desc_act": True, "checkpoint_format": "gptq_v2"}
write("gptq_ordered", gptq(4, 32, True, "gptq_v2"), ordered)
eight = {**common, "bits": 8, "group_size": 32, "desc_act": False, "checkpoint_format": "gptq_v2"}
write("gptq_int8", gptq(8, 32, False, "gptq_v2"), eight)
zero_point = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True}
write("awq", awq, zero_point)
save_file(sampled(values), OUT / "values.safetensors")
