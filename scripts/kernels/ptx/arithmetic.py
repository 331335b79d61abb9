"""Instructions that compute, each thread by itself."""

import numpy as np

from .element import SIGNED, UNSIGNED, bits_of, dtype_of, narrow, widen


def elementwise(function, floats=None):
    """The instruction that a function of arrays is; with `floats`, of floats that one."""

    def instruction(block, suffixes, operands):
        kind = dtype_of(suffixes[-1])
        own = floats if floats and suffixes[-1].startswith("f") else function
        with np.errstate(all="ignore"):
            block.set(operands[0], own(*(block.value(operand, kind) for operand in operands[1:])).astype(kind))

    return instruction


def multiply(block, suffixes, operands):
    """`mul` and, of integers, `mad`: the lower half of a product, its upper half, or all of it."""
    kind = dtype_of(suffixes[-1])
    a, b = (block.value(operand, kind) for operand in operands[1:3])
    bits, form = bits_of(kind), suffixes[0]
    with np.errstate(all="ignore"):
        if form in ("wide", "hi"):
            wide = (SIGNED if np.dtype(kind).kind == "i" else UNSIGNED)[bits * 2]
            product = a.astype(wide) * b.astype(wide)
            product = product if form == "wide" else (product >> wide(bits)).astype(kind)
        else:
            product = a * b
        for operand in operands[3:]:
            product = product + block.value(operand, product.dtype.type)
    block.set(operands[0], product)


def fused(block, suffixes, operands):
    kind = dtype_of(suffixes[-1])
    a, b, c = (block.value(operand, kind).astype(np.float64) for operand in operands[1:])
    with np.errstate(all="ignore"):
        block.set(operands[0], (a * b + c).astype(kind))


def shift(function):
    """A shift, by at most the width: what then remains of unsigned values is 0."""

    def instruction(block, suffixes, operands):
        kind = dtype_of(suffixes[-1])
        by, bits = block.value(operands[2], np.uint32), bits_of(kind)
        shifted = function(block.value(operands[1], kind), np.minimum(by, bits - 1).astype(kind))
        block.set(operands[0], shifted if suffixes[-1][0] == "s" else np.where(by < bits, shifted, kind(0)))

    return instruction


def insert_bits(block, suffixes, operands):
    bits, base, at, count = (block.value(operand, np.uint32) for operand in operands[1:])
    mask = ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)).astype(np.uint32) << at
    block.set(operands[0], (bits << at & mask) | (base & ~mask))


def extract_bits(block, suffixes, operands):
    kind = dtype_of(suffixes[-1])
    value, at, count = (block.value(operand, kind).astype(np.int64) for operand in operands[1:])
    found = value >> at & (1 << count) - 1
    is_negative = (kind is np.int32) & (found >> np.maximum(count - 1, 0) & 1 == 1)
    block.set(operands[0], np.where(is_negative, found - (1 << count), found).astype(kind))


COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


def compare(block, suffixes, operands):
    """Of floats, a comparison with `u` behind its name is true also where one is no number, any other false."""
    a, b = (block.value(operand, dtype_of(suffixes[-1])) for operand in operands[1:])
    result = COMPARISONS[suffixes[0][:2]](a, b)
    unordered = np.isnan(a) | np.isnan(b) if a.dtype.kind == "f" else False
    block.set(operands[0], result | unordered if suffixes[0].endswith("u") else result & np.invert(unordered))


def select(block, suffixes, operands):
    kind = UNSIGNED[bits_of(dtype_of(suffixes[-1]))]
    chosen, (a, b) = block.value(operands[3], np.bool_), (block.value(operand, kind) for operand in operands[1:3])
    block.set(operands[0], np.where(chosen, a, b))


def convert(block, suffixes, operands):
    to, source = suffixes[-2:]
    if to in ("bf16x2", "f16x2"):
        high, low = (narrow(block.value(operand, np.float32), to[:-2]).astype(np.uint32) for operand in operands[1:])
        return block.set(operands[0], high << 16 | low)
    value = widen(block.value(operands[1], np.uint16), "bf16") if source == "bf16" else block.value(operands[1], dtype_of(source))
    block.set(operands[0], narrow(value, "bf16") if to == "bf16" else value.astype(dtype_of(to)))


INSTRUCTIONS = {
    "add": elementwise(np.add),
    "sub": elementwise(np.subtract),
    "and": elementwise(np.bitwise_and),
    "or": elementwise(np.bitwise_or),
    "xor": elementwise(np.bitwise_xor),
    "not": elementwise(np.invert),
    "neg": elementwise(np.negative),
    "abs": elementwise(np.abs),
    "min": elementwise(np.fmin),
    "max": elementwise(np.fmax),
    "div": elementwise(np.floor_divide, np.divide),
    "sqrt": elementwise(np.sqrt),
    "rcp": elementwise(np.reciprocal),
    "ex2": elementwise(np.exp2),
    "lg2": elementwise(np.log2),
    "copysign": elementwise(lambda sign, size: np.copysign(size, sign)),
    "mul": multiply,
    "mad": multiply,
    "fma": fused,
    "shl": shift(np.left_shift),
    "shr": shift(np.right_shift),
    "bfi": insert_bits,
    "bfe": extract_bits,
    "setp": compare,
    "selp": select,
    "cvt": convert,
}
