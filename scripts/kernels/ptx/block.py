"""A block of threads."""

import re

import numpy as np

from . import arithmetic, movement, tensor_cores
from .memory import SHARED, GLOBAL, Memory
from .element import UNSIGNED, bits_of, dtype_of

INSTRUCTIONS = {**arithmetic.INSTRUCTIONS, **movement.INSTRUCTIONS, **tensor_cores.INSTRUCTIONS}


class Block:
    """A block of threads: registers are arrays of a value for each. `mask` has the threads that are at the instruction."""

    def __init__(self, kernel, number, blocks, threads, arguments, memory, shared_bytes):
        self.kernel, self.threads, self.memory = kernel, threads, memory
        self.shared = Memory(0, kernel.static_bytes + shared_bytes)
        self.arguments = {name: dtype_of(kind)(value) for (kind, name), value in zip(kernel.parameters, arguments, strict=True)}
        self.mask = np.ones(threads, bool)
        self.special = {"%tid.x": np.arange(threads), "%laneid": np.arange(threads) % 32, "%ntid.x": np.full(threads, threads)}
        for axis, own, count in zip("xy", number, blocks, strict=True):
            self.special |= {f"%ctaid.{axis}": np.full(threads, own), f"%nctaid.{axis}": np.full(threads, count)}
        self.registers = {}
        # Copies that have not happened, each with the number of its group, and how many groups each thread has ended.
        self.copies, self.copy_groups = [], np.zeros(threads, np.int64)
        # Products since the last group, and the groups that nobody has waited for.
        self.products, self.product_groups = [], []

    def run(self):
        """Threads go on together from the lowest instruction that any of them is at, up to the next one's that waits above it."""
        places, alive = np.zeros(self.threads, np.int64), np.ones(self.threads, bool)
        waiting = ~alive
        while alive.any():
            ready = alive & ~waiting
            if not ready.any():
                waiting[:] = False
                continue
            place = places[ready].min()
            self.mask = ready & (places == place)
            above = places[ready & ~self.mask].min(initial=len(self.kernel.instructions))
            while place < above:
                together, instruction = self.mask, self.kernel.instructions[place]
                place += 1
                taken = together
                if instruction.guard:
                    taken = together & (self.value(instruction.guard, np.bool_) ^ instruction.negated)
                if instruction.name in ("bra", "ret") or instruction.is_block_barrier:
                    places[together] = place
                    if instruction.name == "bra":
                        places[taken] = self.kernel.labels[instruction.operands[0]]
                    elif instruction.name == "ret":
                        alive &= ~taken
                    else:
                        waiting |= taken
                    break
                if taken.any():
                    self.mask = taken
                    self.do(instruction)
                    self.mask = together
            else:
                places[self.mask] = place

    def do(self, instruction):
        try:
            INSTRUCTIONS[instruction.name](self, instruction.suffixes, instruction.operands)
        except (KeyError, IndexError, ValueError, NotImplementedError) as error:
            raise RuntimeError(f"{instruction}: {error!r}") from error

    # ---- operands -----------------------------------------------------------------------------------------------------

    def width(self, name):
        """The type that a register was declared with."""
        return np.dtype(self.kernel.widths.get(name) or self.kernel.widths[name.rstrip("0123456789")])

    def value(self, operand, dtype):
        """An operand in each thread."""
        held = self.registers.get(operand)
        if held is None:
            held = self._first_value(operand, np.dtype(dtype))
        if held.dtype.itemsize != np.dtype(dtype).itemsize:
            held = held.astype(UNSIGNED[bits_of(dtype)])
        return held.view(dtype)

    def _first_value(self, operand, dtype):
        """Of what is no register yet."""
        if operand in self.special:
            return self.special[operand].astype(dtype)
        if operand in self.kernel.symbols:
            return np.full(self.threads, self.kernel.symbols[operand], dtype)
        number = re.fullmatch(r"0(?:[fF]([0-9a-fA-F]{8})|[dD]([0-9a-fA-F]{16}))|(-?\d+|0x[0-9a-fA-F]+)U?", operand)
        if number:
            bits = number[1] or number[2]
            value = int(bits, 16) if bits else int(number[3], 0)
            value = value != 0 if dtype == bool else value % (1 << bits_of(dtype))
            return np.full(self.threads, value, f"u{dtype.itemsize}" if dtype != bool else bool)
        self.registers[operand] = np.full(self.threads, 0xFF, np.uint8).repeat(self.width(operand).itemsize).view(self.width(operand))
        return self.registers[operand]

    def set(self, name, values):
        """Writes a register in the threads that are at the instruction."""
        if name == "_":
            return
        width = self.width(name)
        if values.dtype.itemsize != width.itemsize:
            values = values.astype(width)
        values = np.ascontiguousarray(values).view(width)
        self.registers[name] = values if self.mask.all() else np.where(self.mask, values, self.value(name, width.type))

    def each(self, operand):
        """The names in `{a, b}`, or of one register."""
        return [name.strip() for name in operand.strip("{}").split(",")]

    def values(self, operand, dtype):
        """(threads, registers) of `{a, b}` or of one register."""
        return np.stack([self.value(name, dtype) for name in self.each(operand)], axis=1)

    def set_each(self, operand, values):
        """Writes (threads, registers) to `{a, b}` or to one register."""
        for index, name in enumerate(self.each(operand)):
            self.set(name, values[:, index])

    def addresses(self, operand):
        """Of `[register+offset]`."""
        register, offset = re.fullmatch(r"\[\s*([^+\]\s]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand).groups()
        return self.value(register, np.uint64) + np.uint64(int(offset or 0) % (1 << 64))

    def space(self, named, addresses):
        """The memory that an instruction names, and addresses in it."""
        if named == "global" or (named is None and (addresses[self.mask] >= GLOBAL).all()):
            return self.memory, addresses
        return self.shared, addresses % np.uint64(SHARED)

    # ---- threads together ---------------------------------------------------------------------------------------------

    def require_warps(self):
        """Fails where only some threads of a warp are at the instruction."""
        warps = self.mask.reshape(-1, 32)
        if (warps != warps[:, :1]).any():
            raise ValueError("not all threads of a warp are here")

    def require_all(self):
        """Fails where only some threads are at the instruction."""
        if not self.mask.all():
            raise NotImplementedError("not all threads of the block are here")
