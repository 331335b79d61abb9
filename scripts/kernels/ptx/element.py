"""Elements: types as suffixes of instructions name them, and numbers of 16 bits."""

import numpy as np

SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}


def dtype_of(suffix):
    """The type of a suffix as in `add.s32`; of bits it is an unsigned one."""
    if suffix == "pred":
        return np.bool_
    return {"s": SIGNED, "f": FLOATS, "u": UNSIGNED, "b": UNSIGNED}[suffix[0]][int(suffix[1:])]


def bits_of(dtype):
    return np.dtype(dtype).itemsize * 8


def widen(bits, kind):
    """F32 of `bf16` or `f16`."""
    return (bits.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def narrow(values, kind):
    """`bf16` or `f16` of F32, rounded to nearest even."""
    if kind != "bf16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)
