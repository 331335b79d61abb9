"""A thousand steps of 8-bit AdamW on gradients of which three of four are 0.

Made with torch 2.15.0 and bitsandbytes 0.50.2 on a CPU:
    TORCHDYNAMO_DISABLE=1 python make_8bit.py

Writes sparse_8bit.safetensors, the values of one matrix that starts at 0 after all steps: `adamw` by torch, `bitsandbytes`
by the plain PyTorch backend of bitsandbytes, `bounded` by the same code with the two bounds that `crates/engine/src/optimizer/
adamw.rs` derives. `lost` is 1 where one of these took hold in some step.

The gradients are a formula of integers and powers of two (`gradient`), the same to the last bit in `tests/it/optimizer.rs`.
"""

import bitsandbytes as bnb
import bitsandbytes.functional as bnb_functional
import torch
from bitsandbytes.backends.triton import kernels_optim
from safetensors.torch import save_file

torch.set_num_threads(1)
STEPS, RATE, BETA1, BETA2, EPSILON = 1000, 1e-3, 0.9, 0.999, 1e-8
# At least 4096 elements, and no multiple of a block's 256.
SHAPE = (17, 260)
INDEX = torch.arange(SHAPE[0] * SHAPE[1])
signed = bnb_functional.create_dynamic_map(signed=True)
unsigned = bnb_functional.create_dynamic_map(signed=False)


def gradient(step):
    """Numbers of 16 bits, three of four 0, times a power of two that is the element's own."""
    bits = (step * 0x9E3779B9 ^ INDEX * 0x85EBCA6B) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = ((bits ^ bits >> shift) * factor) & 0xFFFFFFFF
    bits = bits ^ bits >> 16
    value = ((bits >> 16).float() / 32768 - 1) * 2.0 ** -(INDEX % 17).float()
    return torch.where(bits % 4 == 0, value, 0.0).reshape(SHAPE)


def adamw():
    p = torch.nn.Parameter(torch.zeros(SHAPE))
    optimizer = torch.optim.AdamW([p], lr=RATE, weight_decay=0.0, foreach=False)
    for step in range(1, STEPS + 1):
        p.grad = gradient(step)
        optimizer.step()
    return p.detach()


def by_its_class():
    """What `bnb.optim.AdamW8bit` itself comes to on a CPU, whose codes are rounded to a grid first."""
    p = torch.nn.Parameter(torch.zeros(SHAPE))
    optimizer = bnb.optim.AdamW8bit([p], lr=RATE, weight_decay=0.0)
    for step in range(1, STEPS + 1):
        p.grad = gradient(step)
        optimizer.step()
    return p.detach()


widen = kernels_optim._dequantize_blockwise_pytorch


class Bounds:
    """Stands where bitsandbytes widens states: of each pair the first comes first."""

    def __init__(self, takes_hold):
        self.takes_hold = takes_hold
        self.lost = torch.zeros(SHAPE, dtype=torch.bool)
        self.mean = None

    def __call__(self, codes, absmax, code, blocksize, dtype):
        state = widen(codes, absmax, code, blocksize, dtype)
        if code is signed:
            self.mean = state
            return state
        # Half of the smallest value that is not 0 is the largest one that becomes 0.
        most_of_zero = widen(torch.ones_like(codes), absmax, code, blocksize, dtype) / 2
        law = (1 - BETA2) * (1 - BETA1**2 / BETA2) / (1 - BETA1) ** 2
        bounded = torch.maximum(state, torch.where(self.mean == 0, 0.0, most_of_zero))
        bounded = torch.maximum(bounded, law * self.mean * self.mean)
        self.lost |= bounded != state
        return bounded if self.takes_hold else state


def blockwise(takes_hold):
    bounds = kernels_optim._dequantize_blockwise_pytorch = Bounds(takes_hold)
    p, blocks = torch.zeros(SHAPE), (INDEX.numel() + 255) // 256
    first, second = torch.full(SHAPE, 127, dtype=torch.uint8), torch.zeros(SHAPE, dtype=torch.uint8)
    absmax = [torch.zeros(blocks), torch.zeros(blocks)]
    for step in range(1, STEPS + 1):
        kernels_optim.optimizer_update_8bit_blockwise_pytorch(
            p, gradient(step), first, second, BETA1, BETA2, 0.0, 0.0, EPSILON, step, RATE, signed, unsigned, *absmax,
            0.0, 1.0, False, optimizer_name="adam",
        )  # fmt: skip
    return p, bounds.lost


bitsandbytes, lost = blockwise(False)
bounded, _ = blockwise(True)
out = {"adamw": adamw(), "bitsandbytes": bitsandbytes, "bounded": bounded, "lost": lost.to(torch.uint8)}
for name, value in [*out.items(), ("bnb.optim.AdamW8bit", by_its_class())]:
    print(f"{name}: up to {value.float().abs().max():.4g}, of all {value.float().mean():.4g}")
save_file(out, "sparse_8bit.safetensors")
