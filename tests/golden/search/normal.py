"""Arbitrary-precision values for the tests of src/search/normal.rs. Needs mpmath; prints Rust constants."""
from mpmath import mp, mpf, erfc, exp, log, pi, sqrt

mp.dps = 50


def density(x):
    return exp(-x * x / 2) / sqrt(2 * pi)


def cumulative(x):
    return erfc(-x / sqrt(2)) / 2


for x in (-3, 2, "5.9", "6.1", 40):
    x = mpf(x)
    print("mills", x, mp.nstr(cumulative(-x) / density(x), 17))
for z in (3, "-0.99", "-1.01", "-5.95", "-6.05", "-1e6"):
    z = mpf(z)
    with mp.workdps(60 if z > -1000 else 80):
        # phi cancels almost whole: the working precision has digits to spare.
        print("log_h", z, mp.nstr(log(density(z) + z * cumulative(z)), 17))
