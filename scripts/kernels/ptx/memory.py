"""Memories of a GPU. What nobody has written is no number."""

import numpy as np

# Where generic addresses of shared memory begin, and those of global memory.
SHARED, GLOBAL = 1 << 36, 1 << 40


class Memory:
    """Bytes that begin at an address."""

    def __init__(self, base, size):
        self.base, self.bytes, self.used = base, np.full(size, 0xFF, np.uint8), 0

    def place(self, array):
        """The address of a copy of the array."""
        start = self.used
        self.used += array.nbytes + -array.nbytes % 256 + 256
        self.bytes[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        return self.base + start

    def read(self, address, dtype, shape):
        """The array at an address."""
        start = address - self.base
        return self.bytes[start : start + int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape).copy()

    def _places(self, addresses, size):
        start = addresses.astype(np.int64) - self.base
        if start.size and (start.min() < 0 or start.max() + size > len(self.bytes)):
            raise IndexError(f"addresses {start.min():#x} to {start.max():#x} in {len(self.bytes):#x} bytes")
        if (start % size).any():
            raise IndexError(f"an address that is no multiple of {size}")
        return start[:, None] + np.arange(size)

    def load(self, addresses, size):
        """(addresses, size) bytes."""
        return self.bytes[self._places(addresses, size)]

    def store(self, addresses, values):
        """Writes (addresses, size) bytes."""
        self.bytes[self._places(addresses, values.shape[1])] = values
