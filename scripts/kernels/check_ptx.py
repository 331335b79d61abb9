#!/usr/bin/env python3
"""Runs the kernels that multiply on tensor cores (attention, Muon, gradients of adapters) as NVRTC compiles them, and what Triton compiles for the same GPUs, instruction by
instruction on the CPU.

    scripts/kernels/check_ptx.py [--library libnvrtc.so.13]

The emulation of the tests (emulation.h) runs the kernels' C++; this runs their PTX, with the assembler in it. What the tensor
cores' instructions mean, above all the descriptors of operands in shared memory on Hopper, is read in one place (`ptx/`). Triton's kernels
are known to work on GPUs: where they come out right, the reading is right for the instructions they have. Needs numpy and NVRTC, but no GPU; without Triton
its part is left out.
"""

import argparse
import itertools
import sys
import time

import numpy as np

import adapter_gradients
import compile_kernels
import grouped_products
import muon_updates
import ptx

# Shared memory of a block on Hopper.
SHARED_BYTES = 227 << 10
# The largest error, as part of the largest value: rounding of weights and results.
TOLERANCE = {"bf16": 1e-2, "f16": 1.5e-3}
# File, architecture, what kernels have in their names, and of each size of heads rows and threads of a block of the three kernels, as
# forms.rs has them.
FORMS = [
    (
        "attention_hopper.cu",
        "compute_90a",
        "hopper_",
        {
            64: ((128, 256), (128, 384), (128, 384)),
            128: ((128, 256), (128, 384), (128, 384)),
        },
    ),
    (
        "attention.cu",
        "compute_80",
        "",
        {
            64: ((128, 128), (128, 128), (64, 128)),
            96: ((128, 128), (64, 128), (64, 128)),
            128: ((128, 128), (64, 128), (64, 128)),
            256: ((64, 128), (32, 64), (32, 128)),
        },
    ),
    (
        "attention_ada.cu",
        "compute_89",
        "",
        {
            64: ((128, 128), (128, 128), (64, 128)),
            96: ((128, 128), (128, 256), (64, 256)),
            128: ((64, 128), (128, 256), (64, 256)),
            256: ((128, 256), (64, 128), (32, 128)),
        },
    ),
]
# Lengths of documents, query heads, key heads, window, soft-cap.
PROBLEMS = [([200], 2, 1, 0, 0.0), ([90, 1, 172], 2, 2, 0, 0.0), ([300], 1, 1, 50, 3.0)]


def reference(q, k, v, d_o, bounds, window, scale, cap):
    """o, lse, dq, dk, dv in F64; the tensors (tokens, heads, d)."""
    q, k, v, d_o = (tensor.astype(np.float64) for tensor in (q, k, v, d_o))
    tokens, heads, _ = q.shape
    query, key = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    seen = (key <= query) & (key >= bounds[0][:, None]) & ((window == 0) | (query - key < window))
    o, lse, dq, dk, dv = np.zeros_like(q), np.zeros((tokens, heads)), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for head in range(heads):
        own = head // (heads // k.shape[1])
        scores = scale * q[:, head] @ k[:, own].T
        capped = cap * np.tanh(scores / cap) if cap else scores
        weights = np.where(seen, np.exp(capped), 0)
        lse[:, head] = np.log(weights.sum(1))
        weights /= weights.sum(1, keepdims=True)
        o[:, head] = weights @ v[:, own]
        slopes = weights * (d_o[:, head] @ v[:, own].T - (d_o[:, head] * o[:, head]).sum(1, keepdims=True))
        if cap:
            slopes *= 1 - (capped / cap) ** 2
        dq[:, head] = scale * slopes @ k[:, own]
        dk[:, own] += scale * slopes.T @ q[:, head]
        dv[:, own] += weights.T @ d_o[:, head]
    return o, lse, dq, dk, dv


def error(found, expected):
    """The largest, as part of the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


class Numbers:
    """Random numbers of 16 bits, and global memory with room for them."""

    def __init__(self, kind, seed):
        self.kind, self.random, self.memory = kind, np.random.default_rng(seed), ptx.Memory(ptx.GLOBAL, 1 << 24)

    def draw(self, *shape):
        return ptx.widen(ptx.narrow(self.random.standard_normal(shape).astype(np.float32), self.kind), self.kind)

    def place(self, tensor):
        return self.memory.place(ptx.narrow(tensor, self.kind))

    def room(self, shape):
        return self.place(np.full(shape, np.nan, np.float32))

    def read(self, address, shape):
        return ptx.widen(self.memory.read(address, np.uint16, shape), self.kind)


def attention(module, form, instance, sizes, kind, head_dim, problem):
    """The largest error of what the three kernels give, whose blocks have these rows and threads."""
    lengths, heads, key_heads, window, cap = problem
    tokens, ends = sum(lengths), np.cumsum(lengths)
    bounds = np.stack([np.repeat(ends - lengths, lengths), np.repeat(ends, lengths)]).astype(np.uint32)
    numbers = Numbers(kind, seed=tokens + head_dim)
    own, others = (tokens, heads, head_dim), (tokens, key_heads, head_dim)
    tensors = q, k, v, d_o = [numbers.draw(*shape) for shape in (own, others, others, own)]
    scale = head_dim**-0.5
    expected = reference(*tensors, bounds, window, scale, cap)
    q, k, v, d_o = map(numbers.place, tensors)
    o, dq, dk, dv = map(numbers.room, (own, own, others, others))
    memory = numbers.memory
    lse, dot = memory.place(np.full((tokens, heads), np.nan, np.float32)), memory.place((expected[0] * tensors[3]).sum(2).astype(np.float32))
    behind = [memory.place(bounds), tokens, heads, key_heads, head_dim, window, scale, cap]
    calls = [("", heads, [q, k, v, o, lse]), ("query_", heads, [q, k, v, d_o, lse, dot, dq]), ("key_", key_heads, [q, k, v, d_o, lse, dot, dk, dv])]
    for (name, blocks, arguments), (rows, threads) in zip(calls, sizes, strict=True):
        kernel = ptx.Kernel(module, f"attention_{name}{form}{kind}_{instance}")
        kernel.run((-(-tokens // rows), blocks), threads, arguments + behind, memory, SHARED_BYTES)
    found = [numbers.read(address, shape) for address, shape in ((o, own), (dq, own), (dk, others), (dv, others))]
    found.insert(1, memory.read(lse, np.float32, (tokens, heads)))
    return max(error(*both) for both in zip(found, expected, strict=True))


def own_kernels(library):
    """(name, error, tolerance) of each problem in each form."""
    for file, architecture, form, instances in FORMS:
        compiled = compile_kernels.compiled(library, compile_kernels.source(file), architecture)
        if compiled.failed:
            sys.exit(compiled.log)
        for (instance, sizes), kind, problem in itertools.product(instances.items(), TOLERANCE, PROBLEMS):
            # As many elements as the kernels are made for, or a few less.
            head_dim = instance - 8 * PROBLEMS.index(problem)
            name = f"{file} {architecture} {kind} heads of {head_dim}, documents {problem[0]}, window {problem[3]}, cap {problem[4]}"
            yield name, attention(compiled.ptx, form, instance, sizes, kind, head_dim, problem), TOLERANCE[kind]


def triton_kernels():
    """(name, error, tolerance) of products of each form that attention has, as Triton compiles them."""
    try:
        import triton_products
    except ImportError as missing:
        print(f"no Triton beside them: {missing}")
        return
    for architecture, kind in itertools.product((80, 90), TOLERANCE):
        for product in triton_products.PRODUCTS:
            numbers = Numbers(kind, seed=architecture)
            operands = [numbers.draw(*shape) for shape in product.shapes]
            places = [numbers.place(operand) for operand in operands]
            expected = product.expected(*operands, lambda values: ptx.widen(ptx.narrow(values, kind), kind))
            to = numbers.memory.place(np.full(expected.shape, np.nan, np.float32))
            text = triton_products.compiled(product, kind, architecture)
            ptx.Kernel(text).run((1, 1), 128, [*places, to], numbers.memory, SHARED_BYTES)
            instruction = "wgmma" if "wgmma" in text else "mma"
            name = f"Triton {instruction} {kind}: {product.name}"
            yield name, error(numbers.memory.read(to, np.float32, expected.shape), expected), product.tolerance


CHECKS = (muon_updates.updates, adapter_gradients.gradients, grouped_products.products)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="the file of NVRTC")
    arguments = parser.parse_args()
    wrong, began = 0, time.monotonic()
    library = compile_kernels.nvrtc(arguments.library)
    small = (check(library, architecture) for check in CHECKS for architecture in ("compute_80", "compute_90a"))
    for name, found, tolerance in itertools.chain(triton_kernels(), *small, own_kernels(library)):
        is_right = found <= tolerance
        wrong += not is_right
        print(f"{'ok  ' if is_right else 'FAIL'} {name}: error {found:.1e}, at most {tolerance:.1e}", flush=True)
    print(f"{wrong} wrong, {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong else 0)


main()
