"""Gaussian process numbers from scikit-learn for the tests of crates/search/src/gp. Needs scikit-learn; writes gp.rs beside it."""
from pathlib import Path

import numpy as np
import scipy.linalg
import sklearn
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, StationaryKernelMixin

rng = np.random.default_rng(0)
points = rng.random((12, 2)).round(3)
targets = (np.sin(6 * points[:, 0]) + points[:, 1] ** 2 - 0.5).round(4)
queries = np.vstack([rng.random((5, 2)).round(3), points[:1] + 1e-3, [[1.5, -0.5]]])
lengthscales, variance, noise = [0.4, 0.9], 1.3, 1e-4

weights = [0.2, 0.05]


class Alone(StationaryKernelMixin, Kernel):
    """weight / (1 + square) along one axis."""

    def __init__(self, axis, weight):
        self.axis, self.weight = axis, weight

    def __call__(self, a, b=None, eval_gradient=False):
        b = a if b is None else b
        return self.weight / (1 + (a[:, None, self.axis] - b[None, :, self.axis]) ** 2)

    def diag(self, a):
        return np.full(len(a), float(self.weight))


kernel = ConstantKernel(variance, "fixed") * Matern(lengthscales, "fixed", nu=2.5)
for axis, weight in enumerate(weights):
    kernel = kernel + Alone(axis, weight)
process = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(points, targets)
means, deviations = process.predict(queries, return_std=True)

# The evidence at the generalised-least-squares mean.
covariance = kernel(points) + noise * np.eye(len(points))
ones = scipy.linalg.cho_solve(scipy.linalg.cho_factor(covariance), np.ones(len(points)))
mean = ones @ targets / ones.sum()
evidence = (
    GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(points, targets - mean).log_marginal_likelihood_value_
)


def rows(array):
    return ", ".join("[" + ", ".join(repr(float(value)) for value in row) + "]" for row in array)


# A mixed, conditional space: an optimizer of three; for the third, a momentum in [0, 1] and one of two variants. Choices
# are corners of a regular simplex with edges of length 1, and an absent choice is its centre; an absent number is 0.5.
def corner(choice, count):
    return np.full(count, np.sqrt(0.5) / count) if choice is None else np.sqrt(0.5) * np.eye(count)[choice]


def embedded(optimizer, momentum, variant):
    return np.concatenate([corner(optimizer, 3), [0.5 if momentum is None else momentum], corner(variant, 2)])


def setting():
    optimizer = int(rng.integers(3))
    return (optimizer, round(rng.random(), 3), int(rng.integers(2))) if optimizer == 2 else (optimizer, None, None)


def measured(optimizer, momentum, variant):
    return [0.3, -0.5, 0.9][optimizer] + (0 if momentum is None else np.sin(4 * momentum) + 0.4 * variant)


class Simplex(Alone):
    """weight / (1 + 4 square) over the columns of one parameter."""

    def __init__(self, columns, weight):
        self.columns, self.weight = columns, weight

    def __call__(self, a, b=None, eval_gradient=False):
        b = a if b is None else b
        gaps = a[:, None, self.columns] - b[None, :, self.columns]
        return self.weight / (1 + 4 * (gaps**2).sum(axis=2))


mixed = [setting() for _ in range(14)]
mixed_targets = np.round([measured(*one) for one in mixed], 4)
mixed_queries = [(0, None, None), (1, None, None), (2, 0.31, 0), (2, 0.87, 1)]
mixed_lengthscales, mixed_weights = [0.7, 0.4, 1.1], [0.3, 0.15, 0.08]
of_columns = np.repeat(mixed_lengthscales, [3, 1, 2])
mixed_kernel = ConstantKernel(variance, "fixed") * Matern(of_columns, "fixed", nu=2.5)
mixed_kernel += Simplex([0, 1, 2], mixed_weights[0]) + Alone(3, mixed_weights[1]) + Simplex([4, 5], mixed_weights[2])
mixed_process = GaussianProcessRegressor(mixed_kernel, alpha=noise, optimizer=None)
mixed_process.fit(np.array([embedded(*one) for one in mixed]), mixed_targets)
mixed_means, mixed_deviations = mixed_process.predict(np.array([embedded(*one) for one in mixed_queries]), return_std=True)


def option(value):
    return "None" if value is None else f"Some({value})"


def settings(all_settings):
    return ", ".join(f"({optimizer}, {option(momentum)}, {option(variant)})" for optimizer, momentum, variant in all_settings)


lines = [
    f"// Made by gp.py with scikit-learn {sklearn.__version__}.",
    f"pub const GOLDEN_POINTS: [[f64; 2]; {len(points)}] = [{rows(points)}];",
    f"pub const GOLDEN_TARGETS: [f64; {len(targets)}] = [{', '.join(repr(float(v)) for v in targets)}];",
    f"pub const GOLDEN_LENGTHSCALES: [f64; 2] = {lengthscales};",
    f"pub const GOLDEN_WEIGHTS: [f64; 2] = {weights};",
    f"pub const GOLDEN_VARIANCE: f64 = {variance};",
    f"pub const GOLDEN_NOISE: f64 = {noise};",
    f"pub const GOLDEN_QUERIES: [[f64; 2]; {len(queries)}] = [{rows(queries)}];",
    "/// Mean and standard deviation of the noise-free function at each query.",
    f"pub const GOLDEN_PREDICTIONS: [(f64, f64); {len(queries)}] = ["
    + ", ".join(f"({float(m)!r}, {float(d)!r})" for m, d in zip(means, deviations))
    + "];",
    f"pub const GOLDEN_EVIDENCE_WITH_MEAN: f64 = {float(evidence)!r};",
    "/// Optimizer, and for the third of them momentum and variant.",
    "pub type Setting = (usize, Option<f64>, Option<usize>);",
    f"pub const GOLDEN_MIXED: [Setting; {len(mixed)}] = [{settings(mixed)}];",
    f"pub const GOLDEN_MIXED_TARGETS: [f64; {len(mixed)}] = [{', '.join(repr(float(v)) for v in mixed_targets)}];",
    f"pub const GOLDEN_MIXED_LENGTHSCALES: [f64; 3] = {mixed_lengthscales};",
    f"pub const GOLDEN_MIXED_WEIGHTS: [f64; 3] = {mixed_weights};",
    f"pub const GOLDEN_MIXED_QUERIES: [Setting; {len(mixed_queries)}] = [{settings(mixed_queries)}];",
    f"pub const GOLDEN_MIXED_PREDICTIONS: [(f64, f64); {len(mixed_queries)}] = ["
    + ", ".join(f"({float(m)!r}, {float(d)!r})" for m, d in zip(mixed_means, mixed_deviations))
    + "];",
]
Path(__file__).with_name("gp.rs").write_text("\n".join(lines) + "\n")
