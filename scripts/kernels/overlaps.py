"""What runs beside what in the machine code of attention's kernels, and what it costs to start it, as docs/gpu.md says.

The order of the source is not the assembler's: it once moved a wait for products above the softmax that was to run beside them, and
nothing but time was lost."""

import re

import sass

# Of Hopper's kernels: products of a tile, rows of the other side in it, and exponentials of a thread, of the weights and, in the forward
# pass, of its two rows' factors. A block has 128 rows of its own.
PRODUCTS = {"": 2, "query": 3, "key": 4}
MET = {"": 128, "query": 64, "key": 64}
EXPONENTIALS = {"": 66, "query": 32, "key": 32}
# What a thread of the backward pass multiplies by its weights for its slopes.
SLOPES = 32
# Multiply-adds of a multiprocessor's tensor cores in a clock. It has four schedulers, each of which starts an instruction in a clock
# and has two of the block's warps that multiply, and in the backward pass one that copies.
MULTIPLY_ADDS = 2048
WARPS = 2
# Instructions to start a copy of 16 bytes, with what a tile's copies share (in the backward pass barriers as well, and the gradient of
# keys also reads three numbers of a query).
COPYING = {"": 12, "query": 12, "key": 18}
# Registers that the backward pass leaves to a thread that copies.
LITTLE = 24


def beside_products(loop, name):
    """Hopper: instructions of this name while some of the thread's products are under way, in the order in which they run."""
    # A soft-cap's own are passed over where there is none.
    found, under_way = 0, False
    for instruction in sass.usual_way(loop, "HGMMA"):
        if instruction.starts("HGMMA"):
            under_way = True
        elif instruction.starts("WARPGROUP.DEPBAR"):
            under_way = not instruction.operands.endswith("0x0")
        elif instruction.starts(name):
            found += under_way
    return found


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
    """Hopper's forward pass: instructions from the products that are started before copies to the end of those, and how many copies there
    are."""
    copies = [instruction.address for instruction in loop if instruction.starts("LDGSTS")]
    started = max(instruction.address for instruction in loop if instruction.starts("HGMMA") and instruction.address < copies[0])
    end = next(instruction.address for instruction in loop if instruction.starts("LDGDEPBAR"))
    return len(sass.between(loop, started + 1, end)), len(copies)


def registers(instructions):
    """How many registers they name."""
    return 1 + max(int(number) for instruction in instructions for number in re.findall(r"\bR(\d+)\b", instruction.operands))


def lost(kernel, instructions):
    """What a kernel of attention should overlap and does not, and what it does, as text."""
    wrong, right = [], []

    def claim(holds, text):
        (right if holds else wrong).append(f"{kernel}: {text}")

    def claim_all(what, some, of):
        claim(0 < some == of, f"{some} of {of} {what}")

    def claim_slots(loop, slots):
        clocks = PRODUCTS[part] * 128 * MET[part] * int(head_dim) // MULTIPLY_ADDS
        loops = sass.inner_loops(loop)
        claim(loops == 0 and slots < clocks, f"{slots} instructions of a scheduler in {clocks} clocks of products, {loops} loops inside")

    def claim_copies(count, copies):
        claim(0 < count <= COPYING[part] * copies, f"{count} instructions for {copies} copies of a thread")

    if "hopper" in kernel:
        part, head_dim = re.fullmatch(r"attention_(?:(\w+)_)?hopper_\w+?_(\d+)", kernel).groups(default="")
        loop = sass.main_loop(instructions, "HGMMA", "MUFU.EX2", *([] if part else ["LDGSTS"]))
        slots = WARPS * len(sass.usual_way(loop, "HGMMA", "LDGSTS"))
        found = beside_products(loop, "MUFU.EX2")
        claim(found == EXPONENTIALS[part], f"{found} of {EXPONENTIALS[part]} exponentials of a tile run beside products")
        if part:
            found = beside_products(loop, "FMUL")
            claim(found >= SLOPES, f"{found} multiplications of a tile run beside products, of which {SLOPES} make slopes")
            copies = sass.main_loop(instructions, "LDGSTS", "SYNCS.ARRIVE")
            claim_slots(loop, slots + len(copies))
            claim_copies(len(copies), sum(instruction.starts("LDGSTS") for instruction in copies))
            named = registers(copies)
            claim(named <= LITTLE, f"{named} registers of {LITTLE} where tiles are copied")
            claim(not sass.has(loop, "BAR.", "LDGSTS"), "no barrier of the block, and no copy, where products are made")
        else:
            claim_slots(loop, slots)
            claim_copies(*copying(loop))
            claim_all("copies are started beside products", *copies_beside_products(loop))
    # One tile of what is met has to do for gradients of the largest heads: it is copied while nobody multiplies.
    elif not re.fullmatch(r"attention_(query|key)_\w+_256", kernel):
        loop = sass.main_loop(instructions, "HMMA", "LDGSTS")
        claim_all("products run beside copies", *products_beside_copies(loop))
    return wrong, right


def of_attention(kernel):
    """Whether it is one of those on tensor cores."""
    return kernel.startswith("attention_") and not re.match(r"attention_(dot|\w*plain)_", kernel)
