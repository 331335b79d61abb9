"""Small products in Triton, compiled for a GPU that need not be there: the forms in which attention multiplies."""

import os
from typing import Callable, NamedTuple

# Without a word Triton warns that it fuses multiply-adds, as it always did.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


class Product(NamedTuple):
    name: str
    kernel: object
    # Of the operands.
    shapes: list
    sizes: dict
    # Of the operands and a function that rounds to 16 bits.
    expected: Callable
    # Of the error, as part of the largest value. Where weights are rounded in between, some of them go the other way.
    tolerance: float


@triton.jit
def straight(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    product = tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :]))
    tl.store(c + m[:, None] * N + n[None, :], product)


@triton.jit
def transposed(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    product = tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.trans(tl.load(b + n[:, None] * K + k[None, :])))
    tl.store(c + m[:, None] * N + n[None, :], product)


@triton.jit
def chained(a, b, c, d, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    first = tl.load(a + m[:, None] * K + k[None, :])
    weights = tl.dot(first, tl.trans(tl.load(b + n[:, None] * K + k[None, :])))
    sums = tl.dot((weights * 0.125).to(first.dtype), tl.load(c + n[:, None] * K + k[None, :]))
    tl.store(d + m[:, None] * K + k[None, :], sums)


def product(kernel, m, n, k, name, expected):
    second = (k, n) if kernel is straight else (n, k)
    shapes = [(m, k), second] + ([(n, k)] if kernel is chained else [])
    return Product(f"{name}, {m} x {n} x {k}", kernel, shapes, {"M": m, "N": n, "K": k}, expected, 1e-3 if kernel is chained else 1e-5)


PRODUCTS = [
    *(product(straight, 64, n, k, "a b", lambda a, b, _: a @ b) for n, k in ((64, 64), (128, 64), (64, 128), (128, 128))),
    *(product(transposed, 64, n, k, "a b^T", lambda a, b, _: a @ b.T) for n, k in ((64, 64), (128, 64), (64, 128), (128, 128))),
    *(
        product(chained, 64, n, k, "(a b^T) c, the left one in registers", lambda a, b, c, rounded: rounded(a @ b.T / 8) @ c)
        for n, k in ((64, 64), (128, 64), (64, 128), (128, 128))
    ),
]


def compiled(product, kind, architecture):
    """The PTX of a product of `bf16` or `f16` for compute capability 8.0 or 9.0: a block of 128 threads."""
    element = "*bf16" if kind == "bf16" else "*fp16"
    names = list("abcd")[: len(product.shapes) + 1]
    signature = {name: element for name in names[:-1]} | {names[-1]: "*fp32"} | {size: "constexpr" for size in product.sizes}
    places = {(list(signature).index(name),): value for name, value in product.sizes.items()}
    source = ASTSource(product.kernel, signature, constexprs=places)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 4}).asm["ptx"]
