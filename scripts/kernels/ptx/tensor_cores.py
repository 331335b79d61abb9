"""Instructions of warps and warpgroups on tensor cores."""

import re

import numpy as np

from .element import widen


def elements(block, operand, kind):
    """(threads, registers, 2) of F32 of registers with two elements each."""
    registers = block.values(operand, np.uint32)
    return widen(np.stack([registers & 0xFFFF, registers >> 16], axis=-1).astype(np.uint16), kind)


def load_matrices(block, suffixes, operands):
    """`ldmatrix`: eight rows of 16 bytes for each register, which lanes 8 i .. 8 i + 7 name."""
    block.require_warps()
    names = block.each(operands[0])
    _, addresses = block.space("shared", block.addresses(operands[1]))
    rows = np.zeros((block.threads, 16), np.uint8)
    rows[block.mask] = block.shared.load(addresses[block.mask], 16)
    # (warps, matrices, rows, columns)
    matrices = rows.view(np.uint16).reshape(-1, 4, 8, 8)[:, : len(names)]
    if "trans" in suffixes:
        matrices = matrices.transpose(0, 1, 3, 2)
    pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, len(names), 32)
    block.set_each(operands[0], pairs.transpose(0, 2, 1).reshape(-1, len(names)))


def left_operand(block, operand, kind):
    """(warps, 16, 16) of four registers: of lane 4 g + t rows g and g + 8, then with 8 more of what is summed over, 2 t and 2 t + 1."""
    own = elements(block, operand, kind).reshape(-1, 8, 4, 2, 2, 2)
    return own.transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, 16)


def right_operand(block, operand, kind):
    """(warps, 8, 16) of two registers: of lane 4 g + t column g, of what is summed over 2 t and 2 t + 1, then 8 more."""
    own = elements(block, operand, kind).reshape(-1, 8, 4, 2, 2)
    return own.transpose(0, 1, 3, 2, 4).reshape(-1, 8, 16)


def sums(products):
    """(threads, registers) of (warps, 16, columns): of lane 4 g + t rows g and g + 8, in each 8 columns 2 t and 2 t + 1."""
    warps, _, columns = products.shape
    own = products.reshape(warps, 2, 8, columns // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5)
    return own.reshape(warps * 32, columns // 2)


def multiply(block, suffixes, operands):
    """`mma`"""
    block.require_warps()
    kind = suffixes[6]
    if suffixes != ["sync", "aligned", "m16n8k16", "row", "col", "f32", kind, kind, "f32"]:
        raise NotImplementedError(suffixes)
    left, right = left_operand(block, operands[1], kind), right_operand(block, operands[2], kind)
    block.set_each(operands[0], block.values(operands[3], np.float32) + sums(left @ right.transpose(0, 2, 1)))


def shared_operand(block, descriptor, rows, rows_are_summed):
    """(rows, 16) bits of the elements that a matrix descriptor stands for; with `rows_are_summed` they lie as (16, rows)."""
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    if descriptor >> 62 != 1 or descriptor >> 49 & 7:
        raise NotImplementedError(f"descriptor {descriptor:#x} is not of 128 byte swizzle from a multiple of 1,024 bytes on")
    row, k = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
    if rows_are_summed:
        place = start + row // 64 * leading + row % 64 * 2 + k // 8 * stride + k % 8 * 128
    else:
        place = start + row // 8 * stride + row % 8 * 128 + k * 2
    place ^= (place >> 7 & 7) << 4
    return block.shared.load(place.reshape(-1), 2).view(np.uint16).reshape(rows, 16)


def read(block, group, operand, rows, rows_are_summed, kind):
    """An operand in shared memory, (rows, 16) in F32. What it is now it has to be still when the product is waited for."""
    descriptors = np.unique(block.value(operand, np.uint64)[group * 128 : group * 128 + 128])
    if len(descriptors) > 1:
        raise ValueError("threads of a warpgroup name several operands")
    place = int(descriptors[0]), rows, rows_are_summed
    bits = shared_operand(block, *place)
    block.products[group].append((place, bits))
    return widen(bits, kind)


def start_product(block, suffixes, operands):
    groups = block.require_warpgroups()
    shape, result, kind = suffixes[3:6]
    columns = int(re.fullmatch(r"m64n(\d+)k16", shape)[1])
    in_registers = operands[1].startswith("{")
    adds, *signs_and_orders = operands[3:]
    # Signs of both operands; whether rows are summed over, of the left one only where it lies in shared memory.
    expected = ["1", "1"] if in_registers else ["1", "1", "0"]
    if result != "f32" or signs_and_orders[:-1] != expected:
        raise NotImplementedError(suffixes, operands[3:])
    rows_are_summed = signs_and_orders[-1] == "1"
    if in_registers:
        left = left_operand(block, operands[1], kind).reshape(-1, 64, 16)[groups]
    else:
        left = np.stack([read(block, group, operands[1], 64, False, kind) for group in groups])
    right = np.stack([read(block, group, operands[2], columns, rows_are_summed, kind) for group in groups])
    products = np.zeros((block.threads, columns // 2), np.float32)
    products[block.mask] = sums((left @ right.transpose(0, 2, 1)).reshape(-1, 16, columns))
    before = np.where(block.value(adds, np.bool_)[:, None], block.values(operands[0], np.float32), np.float32(0))
    block.set_each(operands[0], before + products)


def warpgroup(block, suffixes, operands):
    """`wgmma`: a product is made when it is started."""
    if suffixes[0] == "mma_async":
        return start_product(block, suffixes, operands)
    for group in block.require_warpgroups():
        if suffixes[0] == "commit_group":
            block.product_groups[group].append(block.products[group])
            block.products[group] = []
        elif suffixes[0] == "wait_group":
            while len(block.product_groups[group]) > int(operands[0]):
                for place, bits in block.product_groups[group].pop(0):
                    if (shared_operand(block, *place) != bits).any():
                        raise ValueError("an operand changed before its product had been waited for")
        elif suffixes[0] != "fence":
            raise NotImplementedError(suffixes)


INSTRUCTIONS = {"ldmatrix": load_matrices, "mma": multiply, "wgmma": warpgroup}
