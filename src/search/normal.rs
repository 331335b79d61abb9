//! The standard normal distribution, with forms that stay exact far out in its tails.
//!
//! | name | meaning |
//! |---|---|
//! | phi, Phi | density and distribution function |
//! | M(x) | Mills ratio (1 - Phi(x)) / phi(x), which falls from infinity to 0 like 1/x |
//! | h(z) | phi(z) + z Phi(z): the expected improvement of a standard normal over -z |

use std::f64::consts::FRAC_1_SQRT_2;

const LOG_SQRT_2PI: f64 = 0.918_938_533_204_672_7;
/// Beyond this the Mills ratio is a short continued fraction.
const TAIL: f64 = 6.0;

/// phi(x), the density.
pub fn density(x: f64) -> f64 {
    log_density(x).exp()
}

/// ln phi(x).
pub fn log_density(x: f64) -> f64 {
    -0.5 * x * x - LOG_SQRT_2PI
}

/// Phi(x), the probability of a value below x.
pub fn cumulative(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

/// ln Phi(x), exact however small Phi(x) is.
pub fn log_cumulative(x: f64) -> f64 {
    if x > -TAIL {
        cumulative(x).ln()
    } else {
        log_density(x) + mills(-x).ln()
    }
}

/// M(x) = (1 - Phi(x)) / phi(x). Overflows to infinity below about -38.
pub fn mills(x: f64) -> f64 {
    if x < TAIL {
        return cumulative(-x) * (0.5 * x * x + LOG_SQRT_2PI).exp();
    }
    // Laplace's continued fraction 1 / (x + 1 / (x + 2 / (x + ...))), from the far end; 24 terms are exact from 6 on.
    let mut below = x;
    for term in (1..=24).rev() {
        below = x + f64::from(term) / below;
    }
    1.0 / below
}

/// ln h(z), exact for any z (Ament et al. 2023, equation 9 and appendix A.1).
pub fn log_improvement(z: f64) -> f64 {
    if z > -1.0 {
        return (density(z) + z * cumulative(z)).ln();
    }
    let x = -z;
    log_density(z) + one_less_scaled_mills(x).ln()
}

/// 1 - x M(x) for x >= 1, which tends to 1/x^2.
fn one_less_scaled_mills(x: f64) -> f64 {
    if x < TAIL {
        return 1.0 - x * mills(x);
    }
    // With M = 1 / (x + c): 1 - x M = c / (x + c), without cancellation.
    let mut below = x;
    for term in (2..=24).rev() {
        below = x + f64::from(term) / below;
    }
    let c = 1.0 / below;
    c / (x + c)
}

/// The derivative of ln h at z: Phi(z) / h(z).
pub fn log_improvement_slope(z: f64) -> f64 {
    if z > -1.0 {
        cumulative(z) / (density(z) + z * cumulative(z))
    } else {
        mills(-z) / one_less_scaled_mills(-z)
    }
}

/// ln(1 - exp(x)) for x < 0, exact at both ends (Maechler 2012).
pub fn log_one_less_exp(x: f64) -> f64 {
    if x > -std::f64::consts::LN_2 {
        (-x.exp_m1()).ln()
    } else {
        (-x.exp()).ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: f64, expected: f64) {
        let tolerance = 1e-12 * expected.abs().max(1e-300);
        assert!(
            (actual - expected).abs() <= tolerance.max(expected.abs() * 1e-11),
            "{actual} for {expected}"
        );
    }

    /// Numbers from mpmath at 50 digits (`tests/golden/search/normal.py`).
    #[test]
    fn tails_match_arbitrary_precision() {
        close(mills(0.0), 1.253_314_137_315_500_3);
        for (x, expected) in GOLDEN_MILLS {
            close(mills(x), expected);
        }
        for (z, expected) in GOLDEN_LOG_H {
            close(log_improvement(z), expected);
        }
    }

    const GOLDEN_MILLS: [(f64, f64); 5] = [
        (-3.0, 225.334_896_220_349_12),
        (2.0, 0.421_369_229_288_054_47),
        (5.9, 0.164_991_545_300_323_82),
        (6.1, 0.159_843_528_997_826_32),
        (40.0, 0.024_984_404_205_720_571),
    ];
    const GOLDEN_LOG_H: [(f64, f64); 6] = [
        (3.0, 1.098_739_665_327_707_8),
        (-0.99, -2.466_114_391_669_049_4),
        (-1.01, -2.504_199_857_480_256_8),
        (-5.95, -22.264_580_904_304_948),
        (-6.05, -22.895_565_492_439_324),
        (-1e6, -500_000_000_028.549_96),
    ];

    #[test]
    fn the_slope_is_the_derivative() {
        for z in [-30.0, -8.0, -6.0, -5.9, -1.001, -0.9, 0.0, 4.0] {
            let step = 1e-5;
            let numeric = (log_improvement(z + step) - log_improvement(z - step)) / (2.0 * step);
            assert!((numeric / log_improvement_slope(z) - 1.0).abs() < 1e-6, "at {z}");
        }
    }
}
