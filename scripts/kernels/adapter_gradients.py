"""The kernel that makes both gradients of an adapter from one reading, on small matrices, for check_ptx.py."""

import numpy as np

import compile_kernels
import ptx

# Rank that a kernel is made for; tokens, columns and rank; columns of the wider tensors that dy and xa lie in; tiles of tokens of a block.
PROBLEMS = [
    (16, (64, 128, 16), (128, 16), 1),
    (16, (130, 1160, 8), (1184, 24), 2),
    (32, (200, 648, 24), (648, 40), 1),
]
# The largest error, as part of the largest value: sums are F32, and only d_xa is rounded.
TOLERANCE = {"bf16": 6e-3, "f16": 1e-3}
THREADS, TOKENS, COLUMNS, SCALE = 256, 64, 128, 0.5


def error(module, kind, padded, sizes, widths, rows_of_tiles):
    """The larger of the errors of d_xa and of dB, to which the product is added."""
    tokens, columns, rank = sizes
    random, memory = np.random.default_rng(columns), ptx.Memory(ptx.GLOBAL, 1 << 24)

    def draw(*shape):
        return ptx.widen(ptx.narrow(random.standard_normal(shape).astype(np.float32), kind), kind)

    def room(*shape):
        return memory.place(np.full(shape, np.nan, np.float32))

    dy, xa, b = draw(tokens, widths[0]), draw(tokens, widths[1]), draw(columns, rank)
    bands, splits = -(-columns * padded // 16384), -(-tokens // (TOKENS * rows_of_tiles))
    places = [memory.place(ptx.narrow(tensor, kind)) for tensor in (dy, xa, b)]
    parts = [room(bands, tokens, rank), room(splits, columns, rank)]
    stride = padded + 8
    shared = 2 * (2 * TOKENS * (COLUMNS + 8) + (2 * TOKENS + 16384 // padded) * stride) + 4 * TOKENS * padded
    arguments = [*places, *parts, *sizes, *widths, rows_of_tiles]
    ptx.Kernel(module, f"adapter_gradients_{kind}_{padded}").run((bands, splits), THREADS, arguments, memory, shared)
    d_xa = memory.place(ptx.narrow(np.full((tokens, rank + 8), np.nan, np.float32), kind))
    d_b = memory.place(np.ones((columns, rank), np.float32))
    arguments = [*parts, d_xa, d_b, np.float32(SCALE), *sizes, rank + 8, bands, splits]
    blocks = -(-(tokens + columns) * rank // 4 // THREADS)
    ptx.Kernel(module, f"adapter_sums_{kind}").run((blocks, 1), THREADS, arguments, memory, 0)
    dy, xa, b = (tensor.astype(np.float64) for tensor in (dy[:, :columns], xa[:, :rank], b))
    found = ptx.widen(memory.read(d_xa, np.uint16, (tokens, rank + 8)), kind)[:, :rank], memory.read(d_b, np.float32, (columns, rank))
    expected = SCALE * dy @ b, 1 + SCALE * dy.T @ xa
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in zip(found, expected, strict=True))


def gradients(library, architecture):
    """(name, error, tolerance) of each problem."""
    compiled = compile_kernels.compiled(library, compile_kernels.source("adapter_gradients.cu"), architecture)
    if compiled.failed:
        raise SystemExit(compiled.log)
    for kind, tolerance in TOLERANCE.items():
        for padded, sizes, widths, rows_of_tiles in PROBLEMS:
            name = f"adapter_gradients.cu {architecture} {kind}: tokens, columns and rank {sizes} in rows of {widths}"
            yield name, error(compiled.ptx, kind, padded, sizes, widths, rows_of_tiles), tolerance
