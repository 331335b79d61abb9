"""A stand-in for PyTorch: tables of numbers with the few operations that a worker needs, and nothing learnt by itself."""

import contextlib

from . import cuda, distributed, profiler  # noqa: F401

_threads = 1


class DType:
    """A type of numbers."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


bfloat16, float16, float32 = map(DType, ("bfloat16", "float16", "float32"))


def set_num_threads(threads):
    global _threads
    _threads = threads


def get_num_threads():
    return _threads


def no_grad():
    return contextlib.nullcontext()


class Tensor:
    """Rows of numbers."""

    def __init__(self, rows):
        self.rows = rows

    @property
    def shape(self):
        return len(self.rows), len(self.rows[0])

    def numel(self):
        return sum(map(len, self.rows))

    def tolist(self):
        return self.rows

    def sum(self, dim=None):
        sums = [sum(row) for row in self.rows]
        return sum(sums) if dim is None else Column(sums)

    def double(self):
        return self

    def __neg__(self):
        return Tensor([[-value for value in row] for row in self.rows])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        rows, columns = place
        return Tensor([row[columns] for row in (self.rows if rows is Ellipsis else self.rows[rows])])

    def __eq__(self, other):
        return Tensor([[value == other for value in row] for row in self.rows])

    def masked_fill(self, mask, value):
        rows = zip(self.rows, mask.rows)
        return Tensor([[value if is_hidden else one for one, is_hidden in zip(*row)] for row in rows])

    def __ne__(self, other):
        return Tensor([[value != other for value in row] for row in self.rows])

    __hash__ = None


class Column(list):
    """One number of each row."""

    def tolist(self):
        return list(self)

    def __neg__(self):
        return Column(-value for value in self)


class Parameter:
    """A weight: its bytes, and the one number that is learnt of it."""

    def __init__(self, size, value=0.0, requires_grad=True):
        self.size, self.value = size, value
        self.requires_grad, self.grad, self._version = requires_grad, None, 0

    def requires_grad_(self, requires_grad):
        self.requires_grad = requires_grad
        return self

    @property
    def shape(self):
        return (self.numel(),)

    def numel(self):
        return self.size // 4

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return id(self)

    def nbytes(self):
        return self.size
