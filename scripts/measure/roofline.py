#!/usr/bin/env python3
"""A training step on paper: what each part computes and moves, and how long that takes at most on a GPU of a data sheet.

    scripts/measure/roofline.py [--length 4096] [--rows 2] [--rank 16]     # the tables
    scripts/measure/roofline.py --check docs/gpu.md                        # whether a document has these tables

Llama-3-8B in bf16 with LoRA on all linear layers and no checkpointing, by the launches that docs/gpu.md counts. A part takes as long
as its arithmetic or its bytes, whichever is more, at the share of the data sheet that is assumed for its kind. A measurement is read
against it line by line: `profile` gives the time of each kernel.
"""

import argparse
import sys
from typing import NamedTuple

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, HEAD, VOCABULARY = 4096, 14336, 32, 32, 8, 128, 128256
KEYS = KEY_HEADS * HEAD
# Columns that the layer's products read (q, k and v, and gate and up, share theirs), and those that they write.
READ, WRITTEN = 3 * HIDDEN + INNER, 3 * HIDDEN + 2 * KEYS + 2 * INNER
BYTES = 2
LAUNCHES = 62 * LAYERS

# Peak of BF16 in TFLOP/s and bandwidth in TB/s (NVIDIA data sheets, SXM).
DEVICES = {"H100": (989.4, 3.35), "H200": (989.4, 4.8)}
# Assumed shares of these. Large products: 600 to 650 TFLOP/s is what cuBLAS holds at 700 W. Adapters' products are thin: their bytes
# count, at little more than half of the bandwidth. Attention's are argued for in docs/gpu.md, at three quarters of the clock.
LARGE, THIN, STREAM, FORWARD, BACKWARD = 0.63, 0.55, 0.8, 0.5, 0.36
# Rows and columns of a tile of a large product, and the multiprocessors that each have one at a time.
TILE, PROCESSORS = (128, 256), 132
# Values that a step of a large product sums.
STEP = 64
# Between two kernels in a queue that is never empty, in ms.
GAP = 0.0015


class Part(NamedTuple):
    """Useful FLOPs, those it makes in all, bytes, and the shares of peak and bandwidth that it reaches."""

    name: str
    model_flops: float
    flops: float
    bytes: float
    peak: float
    bandwidth: float
    fixed_ms: float = 0

    def ms(self, device):
        peak, bandwidth = DEVICES[device]
        return max(self.flops / (self.peak * peak), self.bytes / (self.bandwidth * bandwidth)) / 1e9 + self.fixed_ms


def idle(rows, columns, splits):
    """Work of all multiprocessors while a product is made, over that of its values; of the best way to split its sums."""
    whole = -(-rows // TILE[0]) * -(-columns // TILE[1])
    made = rows * columns / (TILE[0] * TILE[1])
    return min(-(-whole * split // PROCESSORS) * PROCESSORS / (made * split) for split in splits)


def parts(tokens, length, rank, chunk):
    def streamed(elements):
        return elements * BYTES * tokens * LAYERS

    layer = HIDDEN * (2 * HIDDEN + 2 * KEYS + 3 * INNER)
    products = 2.0 * tokens * layer * LAYERS
    head = 2.0 * tokens * HIDDEN * VOCABULARY
    # Causal: half of the scores. Two products forward, five backward, of which ours makes two twice.
    product = 2.0 * tokens * length / 2 * HEADS * HEAD * LAYERS
    weights = layer * LAYERS * BYTES
    adapters = rank * (READ + WRITTEN) * LAYERS
    logits, chunks = tokens * VOCABULARY * BYTES, -(-tokens // chunk)
    # Logits once, and the gradient of hidden states, whose sum over the vocabulary may be split.
    waste = (idle(chunk, VOCABULARY, [1]) + idle(chunk, HIDDEN, [1, 2, 4])) / 2
    return [
        Part("frozen weights, forward", products, products, weights + streamed(READ + WRITTEN), LARGE, STREAM),
        Part("frozen weights, gradient of inputs", products, products, weights + streamed(READ + WRITTEN), LARGE, STREAM),
        # Inputs for A, outputs read and written for B; dY and X once, dX read and written.
        Part("adapters, forward", 0, 2.0 * tokens * adapters, streamed(READ + 2 * WRITTEN), LARGE, THIN),
        Part("adapters, backward", 0, 4.0 * tokens * adapters, streamed(3 * READ + WRITTEN), LARGE, THIN),
        Part("attention, forward", 2 * product, 2 * product, streamed(2 * HIDDEN + 2 * KEYS), FORWARD, STREAM),
        Part("attention, backward", 5 * product, 5 * product, 2 * streamed(4 * HIDDEN + 4 * KEYS), BACKWARD, STREAM),
        # Two norms, rotation, gated unit; the residual is added by products.
        Part("norms, rotation, gated unit, forward", 0, 0, streamed(6 * HIDDEN + 2 * (HIDDEN + KEYS) + 3 * INNER), 1, STREAM),
        # Both recomputed, and their gradients; o d_o.
        Part("the same, backward", 0, 0, streamed(14 * HIDDEN + 2 * (HIDDEN + KEYS) + 6 * INNER), 1, STREAM),
        # The head's weight for each chunk twice, logits written in F32, their gradient read.
        Part("loss head, two products", 2 * head, 2 * head * waste, 2 * chunks * HIDDEN * VOCABULARY * BYTES + 3 * logits, LARGE, STREAM),
        Part("loss head, softmax and gradient", 0, 0, 3 * logits, 1, STREAM),
        # Value, two states and gradient in F32; gradients zeroed and their norm; values rounded for the passes.
        Part("optimizer, norm, rounding", 0, 0, adapters * 46, 1, STREAM),
        Part("gaps between launches", 0, 0, 0, 1, 1, LAUNCHES * GAP),
    ]


def table(arguments):
    tokens = arguments.rows * arguments.length
    all_parts = parts(tokens, arguments.length, arguments.rank, arguments.chunk)
    lines = [f"| part | TFLOP | GB | {' | '.join(f'{device} ms' for device in DEVICES)} |", "|---|" + "---:|" * (2 + len(DEVICES))]
    for part in all_parts:
        numbers = [f"{part.flops / 1e12:.1f}", f"{part.bytes / 1e9:.0f}", *(f"{part.ms(device):.0f}" for device in DEVICES)]
        lines.append(f"| {part.name} | {' | '.join(numbers)} |")
    flops, model = sum(part.flops for part in all_parts), sum(part.model_flops for part in all_parts)
    times = [sum(part.ms(device) for part in all_parts) for device in DEVICES]
    moved = sum(part.bytes for part in all_parts)
    lines.append(f"| a step | {flops / 1e12:.0f} | {moved / 1e9:.0f} | {' | '.join(f'{ms:.0f}' for ms in times)} |")
    lines.append(f"| tokens/s | | | {' | '.join(f'{tokens / ms * 1e3:,.0f}' for ms in times)} |")
    shares = [model / (ms * DEVICES[device][0] * 1e9) for device, ms in zip(DEVICES, times, strict=True)]
    lines.append(f"| MFU, of {model / 1e12:.0f} TFLOP | | | {' | '.join(f'{share:.0%}' for share in shares)} |")
    return "\n".join(lines)


def longer(projections, rank):
    """Work of products whose sums are longer by the rank, over that of the products as they are, in whole steps of a sum."""
    steps = sum(columns * -(-depth // STEP) for columns, depth in projections)
    return sum(columns * -(-(depth + rank) // STEP) for columns, depth in projections) / steps - 1


def sums(arguments):
    """What adapters' sums cost beside the frozen weights' products, and what longer sums would."""
    tokens = arguments.rows * arguments.length
    # Columns and depth of q, k, v, o, gate, up and down.
    forward = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    backward = [(depth, columns) for columns, depth in forward]
    lines = ["| sum | GB written | GB read again | ms to write | ms to read | longer sums, ms |", "|---|---:|---:|---:|---:|---:|"]
    totals = [0.0] * 5
    peak, bandwidth = DEVICES["H100"]
    for name, columns, projections in [("outputs, of B's products", WRITTEN, forward), ("dx, of A's part", READ, backward)]:
        moved = columns * BYTES * tokens * LAYERS / 1e9
        ms = moved / (THIN * bandwidth)
        products = 2.0 * tokens * sum(columns * depth for columns, depth in projections) * LAYERS / (LARGE * peak) / 1e9
        numbers = [moved, moved, ms, ms, products * longer(projections, arguments.rank)]
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        lines.append(f"| {name} | {numbers[0]:.1f} | {numbers[1]:.1f} | " + " | ".join(f"{number:.1f}" for number in numbers[2:]) + " |")
    lines.append("| both | " + " | ".join(f"{total:.1f}" for total in totals) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=2, help="rows of a step")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=1024, help="rows of a chunk of logits")
    parser.add_argument("--check", metavar="FILE", help="fail where this document has not these tables")
    arguments = parser.parse_args()
    for text in [table(arguments), sums(arguments)]:
        if not arguments.check:
            print(text, end="\n\n")
        elif text not in open(arguments.check).read():
            sys.exit(f"{arguments.check} has another table than\n{text}")


if __name__ == "__main__":
    main()
