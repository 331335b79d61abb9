"""Runs kernels in PTX on arrays of a value for each thread, one block after the other.

It has the instructions that compilers make of attention's kernels; others are named in an error. What they mean is from the PTX ISA 9.0
(https://docs.nvidia.com/cuda/parallel-thread-execution/).
"""

from .kernel import Kernel
from .memory import GLOBAL, Memory
from .element import narrow, widen

__all__ = ["GLOBAL", "Kernel", "Memory", "narrow", "widen"]
