"""Instructions that move values."""

import numpy as np

from .memory import SHARED
from .element import UNSIGNED, bits_of, dtype_of


def space_of(suffixes):
    return next((name for name in (suffix.split("::")[0] for suffix in suffixes) if name in ("global", "shared", "param")), None)


def load(block, suffixes, operands):
    kind, space = dtype_of(suffixes[-1]), space_of(suffixes)
    if space == "param":
        value = block.arguments[operands[1].strip("[] ")]
        return block.set(operands[0], np.full(block.threads, value).astype(kind))
    size, count = np.dtype(kind).itemsize, len(block.each(operands[0]))
    memory, addresses = block.space(space, block.addresses(operands[1]))
    loaded = np.zeros((block.threads, size * count), np.uint8)
    loaded[block.mask] = memory.load(addresses[block.mask], size * count)
    block.set_each(operands[0], loaded.view(UNSIGNED[size * 8]))


def store(block, suffixes, operands):
    values = block.values(operands[1], UNSIGNED[bits_of(dtype_of(suffixes[-1]))])[block.mask]
    memory, addresses = block.space(space_of(suffixes), block.addresses(operands[0]))
    memory.store(addresses[block.mask], np.ascontiguousarray(values).view(np.uint8))


def convert_address(block, suffixes, operands):
    """Between addresses of a space and generic ones, which are the same in global memory."""
    address = block.value(operands[1], np.uint64)
    if "shared" in suffixes:
        address = address % np.uint64(SHARED) + np.uint64(0 if "to" in suffixes else SHARED)
    block.set(operands[0], address)


def move(block, suffixes, operands):
    """Also of one register to several halves, and back."""
    whole, kind = bits_of(dtype_of(suffixes[-1])), dtype_of(suffixes[-1])
    count = max(len(block.each(operand)) for operand in operands)
    if count == 1:
        return block.set(operands[0], block.value(operands[1], kind))
    part = UNSIGNED[whole // count]
    bytes_ = np.ascontiguousarray(block.values(operands[1], part if operands[1].startswith("{") else kind)).view(np.uint8)
    block.set_each(operands[0], bytes_.view(part if operands[0].startswith("{") else kind))


def copy(block, suffixes, operands):
    """`cp.async`: happens as late as it may, when the thread waits for its group."""
    if suffixes[1] == "commit_group":
        block.copy_groups[block.mask] += 1
    elif suffixes[1] == "wait_group":
        done = np.where(block.mask, block.copy_groups - int(operands[0]), 0)
        copies, block.copies = block.copies, []
        for threads, groups, to, source, size, count in copies:
            now = groups < done[threads]
            # Where nothing is copied, there need be no memory.
            bytes_ = np.zeros((np.count_nonzero(now), size), np.uint8)
            reads = count[now] > 0
            bytes_[reads] = block.memory.load(source[now][reads], size)
            bytes_[np.arange(size) >= count[now][:, None]] = 0
            block.shared.store(to[now], bytes_)
            if not now.all():
                block.copies.append((*(values[~now] for values in (threads, groups, to, source)), size, count[~now]))
    else:
        size, threads = int(operands[2]), np.flatnonzero(block.mask)
        count = block.value(operands[3], np.uint32) if len(operands) > 3 else np.full(block.threads, size)
        _, to = block.space("shared", block.addresses(operands[0]))
        places = to[threads], block.addresses(operands[1])[threads]
        block.copies.append((threads, block.copy_groups[threads], *places, size, count[threads]))


def shuffle(block, suffixes, operands):
    block.require_warps()
    own, by = np.arange(block.threads), block.value(operands[2], np.uint32) % 32
    if suffixes[1] not in ("bfly", "idx"):
        raise NotImplementedError(suffixes)
    other = own ^ by if suffixes[1] == "bfly" else own // 32 * 32 + by
    block.set(operands[0].split("|")[0], block.value(operands[1], np.uint32)[other])


def meet(block, suffixes, operands):
    """`bar.warp.sync`, of whole warps."""
    block.require_warps()
    if (block.value(operands[0], np.uint32)[block.mask] != 0xFFFFFFFF).any():
        raise ValueError("a barrier of a part of a warp")


def nothing(block, suffixes, operands):
    """An order that is kept here anyway."""


INSTRUCTIONS = {
    "ld": load,
    "st": store,
    "cvta": convert_address,
    "mov": move,
    "cp": copy,
    "shfl": shuffle,
    "bar": meet,
    "fence": nothing,
}
