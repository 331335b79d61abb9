"""What groups of warps need that divide their work: barriers in shared memory, and registers that they give each other."""

import numpy as np

# Registers of a multiprocessor, all of which a block of such kernels takes.
REGISTERS = 64 << 10


class Barrier:
    """`mbarrier`: rounds of as many arrivals."""

    def __init__(self, count):
        self.count, self.missing, self.parity = count, count, 0

    def arrive(self):
        self.missing -= 1
        if self.missing == 0:
            self.missing, self.parity = self.count, 1 - self.parity


def is_complete(block, operands):
    """Of each thread, whether the last round with its parity is."""
    _, addresses = block.space("shared", block.addresses(operands[1]))
    parity = block.value(operands[2], np.uint32)
    complete = np.ones(block.threads, bool)
    for address in np.unique(addresses[block.mask]):
        complete[addresses == address] = block.barriers[int(address)].parity != parity[addresses == address]
    return complete


def barrier(block, suffixes, operands):
    if suffixes[0] == "try_wait":
        block.set(operands[0], is_complete(block, operands))
        return
    _, addresses = block.space("shared", block.addresses(operands[0 if suffixes[0] == "init" else 1]))
    if suffixes[0] == "init":
        (thread,) = np.flatnonzero(block.mask)
        block.barriers[int(addresses[thread])] = Barrier(int(block.value(operands[1], np.uint32)[thread]))
    elif suffixes[0] == "arrive":
        for address in addresses[block.mask]:
            block.barriers[int(address)].arrive()
    else:
        raise NotImplementedError(suffixes)


def set_registers(block, suffixes, operands):
    """`setmaxnreg`: whether there are as many is asked when the block ends."""
    block.require_warpgroups()
    wanted, before = int(operands[0]), REGISTERS // block.threads // 8 * 8
    if wanted % 8 or not 24 <= wanted <= 256 or (suffixes[0] == "inc") != (wanted >= before):
        raise ValueError(f"{wanted} registers instead of {before}")
    block.thread_registers[block.mask] = wanted


INSTRUCTIONS = {"mbarrier": barrier, "setmaxnreg": set_registers}
