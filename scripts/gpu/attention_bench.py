#!/usr/bin/env python3
"""Times PyTorch's attention on the layers that `peft-tune gpu-check --parts attention` times, and prints both.

    python3 scripts/gpu/attention_bench.py attention.json

BF16, causal, each of SDPA's kernels that takes it (flash, cuDNN, memory-efficient): one forward, and one backward, timed by CUDA events.
What was measured goes into the file, as `sdpa` of each layer.
"""

import json
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit("no PyTorch here: attention is compared with nothing")

UNMEASURED, MEASURED = 3, 10
BACKENDS = [("flash", "FLASH_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"), ("efficient", "EFFICIENT_ATTENTION")]


def seconds(call):
    for _ in range(UNMEASURED):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(MEASURED):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / MEASURED


def measure(layer, backend):
    rows, length, head_dim = layer["rows"], layer["length"], layer["head_dim"]
    group = layer["query_heads"] // layer["key_heads"]

    def random(heads):
        return torch.randn(rows, heads, length, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    q, k, v = random(layer["query_heads"]), random(layer["key_heads"]), random(layer["key_heads"])
    d_o = torch.randn_like(q)

    def forward():
        # As transformers does where a kernel takes no grouped heads.
        keys, values = (tensor.repeat_interleave(group, 1) if group > 1 else tensor for tensor in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)

    with sdpa_kernel(getattr(SDPBackend, backend)):
        with torch.no_grad():
            forward_s = seconds(forward)
        result = forward()
        backward_s = seconds(lambda: torch.autograd.grad(result, (q, k, v), d_o, retain_graph=True))
    flops = 4.0 * rows * layer["query_heads"] * head_dim * length * (length + 1) / 2
    return {
        "forward_s": forward_s,
        "backward_s": backward_s,
        "forward_flops_per_s": flops / forward_s,
        "backward_flops_per_s": 2.5 * flops / backward_s,
    }


def main():
    path = sys.argv[1]
    results = json.load(open(path))
    if not torch.cuda.is_available():
        sys.exit("no GPU for PyTorch: attention is compared with nothing")
    for layer in results["attention"]:
        layer["sdpa"] = []
        for name, backend in BACKENDS:
            try:
                layer["sdpa"].append({"form": f"sdpa {name}", **measure(layer, backend)})
            except RuntimeError as error:
                print(f"{layer['shape']} {name}: {str(error).splitlines()[0]}")
        names = f"| {layer['shape']} | {layer['query_heads']}/{layer['key_heads']} of {layer['head_dim']} | {layer['rows']}x{layer['length']} |"
        for times in layer["sdpa"]:
            print(names, f"{times['form']} | {1e3 * times['forward_s']:.3f} | {times['forward_flops_per_s'] / 1e12:.0f} |"
                  f" {1e3 * times['backward_s']:.3f} | {times['backward_flops_per_s'] / 1e12:.0f} |")
    with open(path, "w") as file:
        json.dump(results, file, indent=1)


main()
