"""What runs beside what in the machine code of attention's kernels, and what it costs to start it, as docs/gpu.md says.

The order of the source is not the assembler's: it once moved a wait for products above the softmax that was to run beside them, and
nothing but time was lost."""

import re

import sass

# Of a tile: exponentials of a thread in the forward pass, of 128 keys' weights and its two rows' factors.
EXPONENTIALS = 66
# Of Hopper's kernels, for heads of 64 and 128: products of a tile, and rows of the other side in it. A block has 128 of its own.
PRODUCTS = {"": 2, "query": 3, "key": 4}
MET = {("", 64): 128, ("", 128): 128, ("query", 64): 128, ("query", 128): 128, ("key", 64): 128, ("key", 128): 64}
# Multiply-adds of a multiprocessor's tensor cores in a clock. It has four schedulers, each of which starts an instruction in a clock
# and has two of the block's warps.
MULTIPLY_ADDS = 2048
WARPS = 2
# Instructions to start a copy of 16 bytes, with what a tile's copies share (the gradient of keys also reads three numbers of a query).
COPYING = 12


def softmax_beside_products(loop):
    """Hopper's forward pass: exponentials between the wait for scores and the wait for the sum of values."""
    waits = [instruction.address for instruction in loop if instruction.starts("WARPGROUP.DEPBAR")]
    if len(waits) != 2:
        return 0
    # A soft-cap's own are passed over where there is none.
    beside = sass.usual_way(sass.between(loop, *waits))
    return sum(instruction.starts("MUFU.EX2") for instruction in beside)


def copies_beside_products(loop):
    """Hopper: copies that are started between products and the wait for them, of all in the loop."""
    copies = [instruction.address for instruction in loop if instruction.starts("LDGSTS")]
    first = next(instruction.address for instruction in loop if instruction.starts("HGMMA"))
    wait = next(instruction.address for instruction in loop if instruction.starts("WARPGROUP.DEPBAR"))
    return sum(first < copy < wait for copy in copies), len(copies)


def products_beside_copies(loop):
    """Other GPUs: products while a copy is under way, of all in the loop."""
    beside, all_of_them, is_copying = 0, 0, False
    for instruction in loop:
        if instruction.starts("LDGDEPBAR"):
            is_copying = True
        elif instruction.starts("DEPBAR"):
            is_copying = False
        elif instruction.starts("HMMA"):
            beside, all_of_them = beside + is_copying, all_of_them + 1
    return beside, all_of_them


def copying(loop):
    """Hopper: instructions from the products that are started before copies to the end of those, and how many copies there are."""
    copies = [instruction.address for instruction in loop if instruction.starts("LDGSTS")]
    started = max(instruction.address for instruction in loop if instruction.starts("HGMMA") and instruction.address < copies[0])
    end = next(instruction.address for instruction in loop if instruction.starts("LDGDEPBAR"))
    return len(sass.between(loop, started + 1, end)), len(copies)


def lost(kernel, instructions):
    """What a kernel of attention should overlap and does not, and what it does, as text."""
    wrong, right = [], []

    def claim(holds, text):
        (right if holds else wrong).append(f"{kernel}: {text}")

    def claim_all(what, some, of):
        claim(0 < some == of, f"{some} of {of} {what}")

    if "hopper" in kernel:
        loop = sass.main_loop(instructions, "HGMMA", "LDGSTS")
        claim_all("copies are started beside products", *copies_beside_products(loop))
        part, head_dim = re.fullmatch(r"attention_(?:(\w+)_)?hopper_\w+?_(\d+)", kernel).groups(default="")
        clocks = PRODUCTS[part] * 128 * MET[part, int(head_dim)] * int(head_dim) // MULTIPLY_ADDS
        loops, slots = sass.inner_loops(loop), WARPS * len(sass.usual_way(loop, "LDGSTS"))
        claim(loops == 0 and slots < clocks, f"{slots} instructions of a scheduler in {clocks} clocks of products, {loops} loops inside")
        instructions, copies = copying(loop)
        claim(loops == 0 and instructions <= COPYING * copies, f"{instructions} instructions for {copies} copies of a thread")
        if re.fullmatch(r"attention_hopper_\w+", kernel):
            found = softmax_beside_products(loop)
            claim(found >= EXPONENTIALS, f"{found} of {EXPONENTIALS} exponentials of a tile run beside products")
    # One tile of what is met has to do for gradients of the largest heads: it is copied while nobody multiplies.
    elif not re.fullmatch(r"attention_(query|key)_\w+_256", kernel):
        loop = sass.main_loop(instructions, "HMMA", "LDGSTS")
        claim_all("products run beside copies", *products_beside_copies(loop))
    return wrong, right


def of_attention(kernel):
    """Whether it is one of those on tensor cores."""
    return kernel.startswith("attention_") and not re.match(r"attention_(dot|\w*plain)_", kernel)
