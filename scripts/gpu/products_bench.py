#!/usr/bin/env python3
"""Times each product of a model's step by itself, through PyTorch, beside what the device gives at best.

    python3 scripts/gpu/products_bench.py OUTPUT.json [--shape llama-3.1-8b] [--batch 2x4096] [--rank 16] [--device cpu]

The ceilings are a BF16 product of 8192 x 8192 x 8192 and a copy of 4 GiB within the device (bytes read and written), both on random
values. Each product is of BF16 values as the model has them: the frozen weights forward and for the gradient of the input, the two of
an adapter, and the head. The frozen weights' products are timed in two more ways: added to what is there, as the engine adds them to
an adapter's, and with a sum that is longer by the rank, in rows of whole lines. What NF4 and int8 choose between is timed as a whole: the
outputs of gate and up, and the gradient of down's input, each with its adapter by two products, and by one behind a copy of the left
operand. A line is printed, and the file written, as soon as it is known.
"""

import argparse
import json
import os
import time

import torch

from peft_bench import SHAPES

SAMPLES, CALLS = 5, 10


def median_seconds(call, device):
    """Of a call among several in a row: what is short is not timed with the gap before it."""
    for _ in range(3):
        call()
    times = []
    for _ in range(SAMPLES):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        if device == "cuda":
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / CALLS)
        else:
            times.append((time.perf_counter() - start) / CALLS)
    return sorted(times)[SAMPLES // 2]


def random(rows, columns, device):
    return torch.randn(rows, columns, device=device, dtype=torch.float32).to(torch.bfloat16)


# Elements of two lines of 128 bytes, of which rows of longer operands are multiples.
WHOLE = 64


def products(config, tokens, rank):
    """(name, rows, inner, columns, whether it is added to what is there) of each product that a step makes, those of one shape once."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    hidden, inner = config.hidden_size, config.intermediate_size
    linear = [("q", hidden, queries), ("k, v", hidden, keys), ("o", queries, hidden), ("gate, up", hidden, inner), ("down", inner, hidden)]
    linear.append(("head", hidden, config.vocab_size))
    for name, columns_in, columns_out in linear:
        yield name, tokens, columns_in, columns_out, False
        yield f"{name}, gradient of the input", tokens, columns_out, columns_in, False
        if name != "head":
            yield f"{name}, onto what is there", tokens, columns_in, columns_out, True
            yield f"{name}, longer by the rank", tokens, columns_in + rank, columns_out, False
            yield f"{name}, adapter A", tokens, columns_in, rank, False
            yield f"{name}, adapter B", tokens, rank, columns_out, False
            yield f"{name}, gradient of A", rank, tokens, columns_in, False
            yield f"{name}, gradient of B", columns_out, tokens, rank, False


def product_seconds(rows, inner, columns, onto, device):
    # The right operand lies as a weight does, its rows summed over.
    width = -(-inner // WHOLE) * WHOLE if inner > WHOLE else inner
    a, b = random(rows, width, device)[:, :inner], random(columns, width, device)[:, :inner].t()
    result = torch.zeros(rows, columns, device=device, dtype=torch.bfloat16)
    if onto:
        return median_seconds(lambda: result.addmm_(a, b), device)
    return median_seconds(lambda: torch.mm(a, b, out=result), device)


def beside(left, right, device):
    """Room for the columns of both beside each other in rows of whole lines, and what copies them there."""
    width, more = left.shape[1], right.shape[1]
    room = torch.zeros(left.shape[0], -(-(width + more) // WHOLE) * WHOLE, device=device, dtype=torch.bfloat16)

    def fill():
        room[:, :width].copy_(left)
        room[:, width:width + more].copy_(right)

    return room[:, :width + more], fill


def both_ways(config, tokens, rank, device):
    """(name, rows, inner, columns, seconds) of sums with adapters' products, by two products and by one."""
    hidden, inner = config.hidden_size, config.intermediate_size
    x, xa, ranks = random(tokens, hidden, device), random(tokens, 2 * rank, device), (slice(0, rank), slice(rank, 2 * rank))
    projections = []
    for own in ranks:
        b = torch.zeros(inner, 2 * rank, device=device, dtype=torch.bfloat16)
        b[:, own] = random(inner, rank, device)
        projections.append((random(inner, hidden, device), b, own, torch.empty(tokens, inner, device=device, dtype=torch.bfloat16)))
    rights = [beside(weight, b, device) for weight, b, _, _ in projections]
    left, copy_left = beside(x, xa, device)
    for _, fill in rights:
        fill()

    def apart():
        for weight, b, own, y in projections:
            torch.mm(xa[:, own], b[:, own].t(), out=y)
            y.addmm_(x, weight.t())

    def longer():
        copy_left()
        for (_, b, _, y), (right, _) in zip(projections, rights, strict=True):
            right[:, hidden:].copy_(b)
            torch.mm(left, right.t(), out=y)

    yield "gate, up with adapters, two products each", tokens, hidden, 2 * inner, median_seconds(apart, device)
    yield "gate, up with adapters, one by a copy", tokens, hidden + 2 * rank, 2 * inner, median_seconds(longer, device)
    weight, a, d_xa = random(hidden + rank, inner, device), random(rank, inner, device), random(tokens, rank, device)
    dx = projections[0][3]
    left, copy_left = beside(x, d_xa, device)

    def gradient_apart():
        torch.mm(d_xa, a, out=dx)
        dx.addmm_(x, weight[:hidden])

    def gradient_longer():
        copy_left()
        weight[hidden:].copy_(a)
        torch.mm(left, weight, out=dx)

    yield "down, gradient with adapter, two products", tokens, hidden, inner, median_seconds(gradient_apart, device)
    yield "down, gradient with adapter, one by a copy", tokens, hidden + rank, inner, median_seconds(gradient_longer, device)


def copy_bytes_per_s(count, device):
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / median_seconds(lambda: target.copy_(source), device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--batch", default="2x4096")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--square", type=int, default=8192, help="edge of the product that is the ceiling")
    parser.add_argument("--copy", type=int, default=4 << 30, help="bytes of the copy")
    arguments = parser.parse_args()
    device = arguments.device
    rows, length = map(int, arguments.batch.split("x"))
    square = arguments.square
    peak = 2.0 * square ** 3 / product_seconds(square, square, square, False, device)
    copied = copy_bytes_per_s(arguments.copy, device)
    results = dict(shape=arguments.shape, batch=arguments.batch, square=square, square_flops_per_s=peak,
                   copy_bytes_per_s=copied, timed=[])
    print(f"ceilings: {square}^3 {peak / 1e12:.1f} TFLOP/s, copy {copied / 1e9:.0f} GB/s", flush=True)

    def timed():
        config, tokens = SHAPES[arguments.shape](), rows * length
        for name, m, k, n, onto in products(config, tokens, arguments.rank):
            yield name, m, k, n, onto, product_seconds(m, k, n, onto, device)
        for name, m, k, n, seconds in both_ways(config, tokens, arguments.rank, device):
            yield name, m, k, n, False, seconds

    for name, m, k, n, onto, seconds in timed():
        flops, moved = 2.0 * m * k * n, 2 * (m * k + k * n + (2 if onto else 1) * m * n)
        # The nearer of the two ceilings is the one that counts.
        floor = max(flops / peak, moved / copied)
        row = dict(product=name, rows=m, inner=k, columns=n, seconds=seconds, flops_per_s=flops / seconds,
                   bytes_per_s=moved / seconds, of_ceiling=floor / seconds)
        results["timed"].append(row)
        print(f"| {name} | {m} x {k} x {n} | {1e3 * seconds:.3f} ms | {flops / seconds / 1e12:.1f} TFLOP/s |"
              f" {moved / seconds / 1e9:.0f} GB/s | {100 * floor / seconds:.0f}% |", flush=True)
        with open(arguments.output + ".part", "w") as file:
            json.dump(results, file, indent=1)
        os.replace(arguments.output + ".part", arguments.output)


if __name__ == "__main__":
    main()
