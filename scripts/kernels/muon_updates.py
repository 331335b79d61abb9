"""Muon's kernel on small matrices, for check_ptx.py."""

import numpy as np

import compile_kernels
import ptx

# Tiles of 16 that short sides fit (the kernel's name), and matrices: both ways, one of them longer than a strip.
PROBLEMS = {
    1: [(9, 530), (600, 16)],
    2: [(32, 270), (40, 17)],
    4: [(64, 150), (130, 50)],
    8: [(128, 70), (100, 90)],
}
# The largest share of the update that rounding to BF16, in another order, may change.
TOLERANCE = 2e-2
MOMENTUM, KEEP, RATE = 0.9, 0.75, 0.5
THREADS = 256
# Columns of a strip, for one tile.
WIDTH = 512


def rounded(values):
    return ptx.widen(ptx.narrow(values.astype(np.float32), "bf16"), "bf16").astype(np.float64)


def orthogonal(update):
    """As muon.rs says, with F64 between the roundings."""
    x = rounded(update if update.shape[0] <= update.shape[1] else update.T)
    x = rounded(x / max(rounded(np.sqrt((x**2).sum())), 1e-7))
    for _ in range(5):
        gram = rounded(x @ x.T)
        x = rounded(3.4445 * x + rounded(-4.7750 * gram + 2.0315 * gram @ gram) @ x)
    return x if update.shape[0] <= update.shape[1] else x.T


def updated(value, gradient, momentum):
    """The value and the momentum behind an update."""
    momentum = momentum + (gradient - momentum) * (1 - MOMENTUM)
    return KEEP * value - RATE * orthogonal(gradient + (momentum - gradient) * MOMENTUM), momentum


def error(module, tiles, shapes):
    """The largest error of a matrix that one launch updates, as part of what the update changes."""
    random, memory = np.random.default_rng(tiles), ptx.Memory(ptx.GLOBAL, 1 << 24)
    matrices = [[random.standard_normal(shape).astype(np.float32) for _ in range(3)] for shape in shapes]
    starts = np.cumsum([0] + [rows * columns for rows, columns in shapes])
    flat = [memory.place(np.concatenate([matrix[which].ravel() for matrix in matrices])) for which in range(3)]
    width = WIDTH // tiles
    rooms = np.cumsum([0] + [16 * tiles * -(-max(shape) // width) * width for shape in shapes])
    room = memory.place(np.full(rooms[-1], 0x7FFF, np.uint16))
    rows = [(index, starts[index], starts[index + 1] - starts[index], starts[index], rooms[index]) for index in range(len(shapes))]
    factors = [(MOMENTUM, 1 - MOMENTUM, KEEP, RATE, *shape, 0, 0) for shape in shapes]
    tables = [memory.place(np.array(rows, np.uint64)), memory.place(np.array(factors, np.float32))]
    shared = 2 * (2 * 16 * tiles * (width + 8) + 16 * tiles * (16 * tiles + 8)) + 64
    ptx.Kernel(module, f"muon_{tiles}").run((len(shapes), 1), THREADS, [*flat, room, *tables, len(shapes)], memory, shared)

    def off(index, which, expected, change):
        found = memory.read(flat[which], np.float32, (starts[-1],))[starts[index] : starts[index + 1]]
        return np.linalg.norm(found - expected.ravel()) / np.linalg.norm(change)

    worst = 0.0
    for index, (value, gradient, momentum) in enumerate(matrices):
        after, moved = updated(value.astype(np.float64), gradient, momentum)
        worst = max(worst, off(index, 0, after, after - KEEP * value), off(index, 2, moved, moved))
    return float(worst)


def updates(library, architecture):
    """(name, error, tolerance) of each launch."""
    compiled = compile_kernels.compiled(library, compile_kernels.source("muon.cu"), architecture)
    if compiled.failed:
        raise SystemExit(compiled.log)
    for tiles, shapes in PROBLEMS.items():
        yield f"muon.cu {architecture}: {tiles} tiles, matrices of {shapes}", error(compiled.ptx, tiles, shapes), TOLERANCE
