"""Numbers behind crates/search/src/normal.rs. Needs mpmath; prints Rust.

The polynomials are Chebyshev expansions, written in powers of t = (5 - x) / (5 + x), of (x + 5) M(x) and of
(x + 5)^2 (1 - x M(x)) for x >= 0, with M the Mills ratio. The golden values are computed with many digits.
"""
from mpmath import cos, erfc, exp, log, mp, mpf, nstr, pi, sqrt

mp.dps = 60
NODES, TERMS = 200, 28


def mills(x):
    if x > 10**6:
        return 1 / x - 1 / x**3 + 3 / x**5
    return exp(x * x / 2) * erfc(x / sqrt(2)) * sqrt(pi / 2)


def one_less(x):
    if x > 10**4:
        return 1 / x**2 - 3 / x**4 + 15 / x**6 - 105 / x**8
    return 1 - x * mills(x)


def powers(function):
    """Coefficients in powers of t of the Chebyshev expansion of a function of x."""
    nodes = [cos(pi * (k + mpf(1) / 2) / NODES) for k in range(NODES)]
    values = [function(5 * (1 - t) / (1 + t)) for t in nodes]
    series = [
        (2 if j else 1) * sum(values[k] * cos(pi * j * (k + mpf(1) / 2) / NODES) for k in range(NODES)) / NODES
        for j in range(TERMS)
    ]
    # T_0 = 1, T_1 = t, T_j = 2 t T_(j-1) - T_(j-2).
    before, current = [mpf(1)], [mpf(0), mpf(1)]
    total = [mpf(0)] * TERMS
    total[0] += series[0]
    for j in range(1, TERMS):
        for power, coefficient in enumerate(current):
            total[power] += series[j] * coefficient
        doubled = [mpf(0)] + [2 * coefficient for coefficient in current]
        before, current = current, [d - (before[i] if i < len(before) else 0) for i, d in enumerate(doubled)]
    return total


def constant(name, values):
    print(f"const {name}: [f64; {len(values)}] = [")
    for value in values:
        print(f"    {nstr(value, 17, min_fixed=1, max_fixed=0)},")
    print("];")


constant("MILLS", powers(lambda x: (x + 5) * mills(x)))
constant("ONE_LESS", powers(lambda x: (x + 5) ** 2 * one_less(x)))


def density(x):
    return exp(-x * x / 2) / sqrt(2 * pi)


def cumulative(x):
    return erfc(-x / sqrt(2)) / 2


for x in ("-3", "2", "5.9", "6.1", "40", "1e5"):
    print("mills", x, nstr(mills(mpf(x)), 17))
for z in ("3", "-0.99", "-1.01", "-5.95", "-6.05", "-1e6"):
    # phi cancels almost whole: the working precision has digits to spare.
    print("log_h", z, nstr(log(density(mpf(z)) + mpf(z) * cumulative(mpf(z))), 17))
for x in ("-1", "0.3", "-8", "-30"):
    print("cumulative", x, nstr(cumulative(mpf(x)), 17))
