"""Gaussian process numbers from scikit-learn for the tests of src/search/gp. Needs scikit-learn; writes gp.rs beside it."""
from pathlib import Path

import numpy as np
import scipy.linalg
import sklearn
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

rng = np.random.default_rng(0)
points = rng.random((12, 2)).round(3)
targets = (np.sin(6 * points[:, 0]) + points[:, 1] ** 2 - 0.5).round(4)
queries = np.vstack([rng.random((5, 2)).round(3), points[:1] + 1e-3, [[1.5, -0.5]]])
lengthscales, variance, noise = [0.4, 0.9], 1.3, 1e-4

kernel = ConstantKernel(variance, "fixed") * Matern(lengthscales, "fixed", nu=2.5)
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


lines = [
    f"// Made by gp.py with scikit-learn {sklearn.__version__}.",
    f"pub const GOLDEN_POINTS: [[f64; 2]; {len(points)}] = [{rows(points)}];",
    f"pub const GOLDEN_TARGETS: [f64; {len(targets)}] = [{', '.join(repr(float(v)) for v in targets)}];",
    f"pub const GOLDEN_LENGTHSCALES: [f64; 2] = {lengthscales};",
    f"pub const GOLDEN_VARIANCE: f64 = {variance};",
    f"pub const GOLDEN_NOISE: f64 = {noise};",
    f"pub const GOLDEN_QUERIES: [[f64; 2]; {len(queries)}] = [{rows(queries)}];",
    "/// Mean and standard deviation of the noise-free function at each query.",
    f"pub const GOLDEN_PREDICTIONS: [(f64, f64); {len(queries)}] = ["
    + ", ".join(f"({float(m)!r}, {float(d)!r})" for m, d in zip(means, deviations))
    + "];",
    f"pub const GOLDEN_EVIDENCE_WITH_MEAN: f64 = {float(evidence)!r};",
]
Path(__file__).with_name("gp.rs").write_text("\n".join(lines) + "\n")
