"""A block of threads."""

import re

import numpy as np

from . import arithmetic, groups, movement, tensor_cores
from .memory import SHARED, GLOBAL, Memory
from .element import UNSIGNED, bits_of, dtype_of

INSTRUCTIONS = {**arithmetic.INSTRUCTIONS, **groups.INSTRUCTIONS, **movement.INSTRUCTIONS, **tensor_cores.INSTRUCTIONS}


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
        # Of each four warps, products since the last group, and the groups that nobody has waited for.
        self.products = [[] for _ in range(-(-threads // 128))]
        self.product_groups = [[] for _ in self.products]
        # Barriers by where they are in shared memory, and registers of threads that have asked for another number of them.
        self.barriers, self.thread_registers = {}, np.zeros(threads, np.int64)

    def run(self):
        """Threads go on together from the lowest instruction that any of them is at, up to the next one's that waits above it."""
        places, alive = np.zeros(self.threads, np.int64), np.ones(self.threads, bool)
        waiting = ~alive
        while alive.any():
            asleep = self.asleep(places, alive)
            ready = alive & ~waiting & ~asleep
            if not ready.any():
                if asleep.any():
                    raise RuntimeError("threads wait for barriers that nobody completes")
                waiting[:] = False
                continue
            place = places[ready].min()
            self.mask = ready & (places == place)
            above = places[ready & ~self.mask].min(initial=len(self.kernel.instructions))
            while place < above:
                together, instruction = self.mask, self.kernel.instructions[place]
                if instruction.waits_for_barrier and not groups.is_complete(self, instruction.operands)[together].all():
                    # Whose barrier is complete goes on by itself.
                    places[together] = place
                    break
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
        changed = self.thread_registers > 0
        if changed.any() and (not changed.all() or self.thread_registers.sum() > groups.REGISTERS):
            raise RuntimeError("threads have more registers than there are")

    def asleep(self, places, alive):
        """Threads at an instruction that waits for a barrier which is not complete."""
        asleep = np.zeros(self.threads, bool)
        for place in np.unique(places[alive]):
            instruction = self.kernel.instructions[place]
            if instruction.waits_for_barrier:
                self.mask = alive & (places == place)
                asleep |= self.mask & ~groups.is_complete(self, instruction.operands)
        return asleep

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

    def require_warpgroups(self):
        """The numbers of those four warps whose threads are at the instruction; fails where only some of four are."""
        whole = self.mask.reshape(-1, 128)
        if (whole != whole[:, :1]).any():
            raise ValueError("not all threads of a warpgroup are here")
        return np.flatnonzero(whole[:, 0])
