"""The products of experts, on small matrices, for check_ptx.py."""

import numpy as np

import compile_kernels
import ptx

# Rows of each group; columns, and the depths of the terms with their scales. Rows that are and are not multiples of 16 bytes.
SUMS = [
    ("nt", 128, (3, 0, 140), 136, ((72, 1.0), (8, 0.5))),
    ("nt", 32, (5, 33), 21, ((37, 2.0),)),
    ("nn", 128, (130, 0, 9), 72, ((136, 1.0), (40, 1.0), (8, 0.5))),
    ("nn", 32, (17, 20), 16, ((64, 0.5),)),
]
# Rows of each group, rows and columns of a group's gradient.
GRADIENTS = [("wide", (3, 0, 140), 8, 136), ("wide", (33, 9), 21, 37), ("tall", (70, 1), 136, 8)]
# The largest error, as part of the largest value.
TOLERANCE = {"bf16": 6e-3, "f16": 1e-3}
THREADS, ROWS, DEPTH, STAGES = 256, 128, 32, 3
NO_GROUP, ALPHA = 0xFFFFFFFF, 0.5


class Problem:
    """Memory with offsets and tiles of groups of rows."""

    def __init__(self, kind, rows):
        self.kind, self.random, self.memory = kind, np.random.default_rng(sum(rows)), ptx.Memory(ptx.GLOBAL, 1 << 24)
        self.ends = np.cumsum(rows)
        self.starts, self.rows, self.groups = self.ends - rows, int(self.ends[-1]), len(rows)
        tiles = [(group, row) for group in range(self.groups) for row in range(self.starts[group], self.ends[group], ROWS)]
        self.tiles = len(tiles) + 1
        self.map = self.memory.place(np.array([*tiles, (NO_GROUP, NO_GROUP)], np.uint32))
        self.offsets = self.memory.place(np.array([0, *self.ends], np.uint32))

    def draw(self, *shape):
        """Values, and where they lie."""
        values = ptx.narrow(self.random.standard_normal(shape).astype(np.float32), self.kind)
        return ptx.widen(values, self.kind).astype(np.float64), self.memory.place(values)

    def of_groups(self):
        return zip(range(self.groups), map(slice, self.starts, self.ends))


def sums(module, kind, problem):
    form, width, rows, columns, depths = problem
    problem = Problem(kind, rows)
    expected, terms = np.zeros((problem.rows, columns)), []
    # What was summed is multiplied with its scale over the next term's before that is added.
    before = 1.0
    for depth, scale in depths:
        x, x_place = problem.draw(problem.rows, depth)
        shape = (problem.groups, columns, depth) if form == "nt" else (problem.groups, depth, columns)
        w, w_place = problem.draw(*shape)
        for group, part in problem.of_groups():
            expected[part] += scale * x[part] @ (w[group].T if form == "nt" else w[group])
        # The first one's matrices through a table, the others' from the first on.
        size = 2 * columns * depth
        table = problem.memory.place(np.array([w_place + group * size for group in range(problem.groups)], np.uint64)) if not terms else 0
        terms.append([x_place, 0 if table else w_place, table, depth, depth, np.float32(before / scale if terms else 1.0)])
        before = scale
    y = problem.memory.place(ptx.narrow(np.full((problem.rows, columns), np.nan, np.float32), kind))
    arguments = [y, problem.map, problem.offsets, 0, problem.groups, columns, len(terms), np.float32(before)]
    for term in [*terms, *[[0, 0, 0, 0, 0, np.float32(1.0)]] * (4 - len(terms))]:
        arguments += term
    of_w = width * (DEPTH + 8) if form == "nt" else DEPTH * (width + 8)
    shared = 2 * STAGES * (ROWS * (DEPTH + 8) + of_w)
    kernel = ptx.Kernel(module, f"grouped_{form}_{kind}_{width}")
    kernel.run((-(-columns // width), problem.tiles), THREADS, arguments, problem.memory, shared)
    found = ptx.widen(problem.memory.read(y, np.uint16, (problem.rows, columns)), kind)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def gradient(module, kind, problem):
    form, rows, height, width = problem
    problem = Problem(kind, rows)
    (a, a_place), (b, b_place) = problem.draw(problem.rows, height), problem.draw(problem.rows, width)
    into = problem.memory.place(np.ones((problem.groups * height, width), np.float32))
    tile = (32, 128) if form == "wide" else (128, 32)
    blocks = -(-height // tile[0]) * -(-width // tile[1])
    arguments = [into, problem.offsets, a_place, b_place, height, width, height, width, np.float32(ALPHA)]
    kernel = ptx.Kernel(module, f"grouped_{form}_{kind}")
    kernel.run((blocks, problem.groups), THREADS, arguments, problem.memory, 2 * STAGES * DEPTH * (sum(tile) + 16))
    expected = np.concatenate([1 + ALPHA * a[part].T @ b[part] for _, part in problem.of_groups()])
    found = problem.memory.read(into, np.float32, expected.shape)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def products(library, architecture):
    """(name, error, tolerance) of each problem."""
    compiled = compile_kernels.compiled(library, compile_kernels.source("grouped.cu"), architecture)
    if compiled.failed:
        raise SystemExit(compiled.log)
    for kind, tolerance in TOLERANCE.items():
        for problem in SUMS:
            name = f"grouped.cu {architecture} {kind}: {problem[0]} of {problem[1]} columns a tile, groups {problem[2]}, terms {problem[4]}"
            yield name, sums(compiled.ptx, kind, problem), tolerance
        for problem in GRADIENTS:
            name = f"grouped.cu {architecture} {kind}: {problem[0]} gradients of ({problem[2]}, {problem[3]}), groups {problem[1]}"
            yield name, gradient(compiled.ptx, kind, problem), tolerance
