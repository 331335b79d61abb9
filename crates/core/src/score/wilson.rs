//! How sure a share is.
//!
//! | symbol | meaning |
//! |---|---|
//! | k, n | right ones, all |
//! | p | k / n |
//! | z | 1.96: the normal distribution's 97.5% quantile |
//!
//! The interval's ends are (p + z²/2n ± z √(p (1 - p) / n + z²/4n²)) / (1 + z²/n): those shares under which k of n is not rarer than
//! one time in forty (E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927). Unlike p ± 1.96
//! standard errors it stays within [0, 1] and has a width where all or none are right.

use std::ops::RangeInclusive;

const Z: f64 = 1.959_963_984_540_054;

/// The 95% interval of the share `right` of `all`; `None` of nothing.
pub fn wilson(right: u64, all: u64) -> Option<RangeInclusive<f64>> {
    if all == 0 {
        return None;
    }
    let n = all as f64;
    let p = right as f64 / n;
    let spread = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let middle = p + Z * Z / (2.0 * n);
    let whole = 1.0 + Z * Z / n;
    Some(((middle - spread) / whole).max(0.0)..=((middle + spread) / whole).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilson_s() {
        // scipy.stats.binomtest(k, n).proportion_ci(method="wilson") of SciPy.
        for (right, all, low, high) in [
            (0, 10, 0.0, 0.277_532_799_862_889_2),
            (8, 10, 0.490_162_471_536_641_9, 0.943_317_848_545_624_7),
            (64, 64, 0.943_375_940_207_194_6, 1.0),
        ] {
            let interval = wilson(right, all).unwrap();
            assert!((interval.start() - low).abs() < 1e-9, "{interval:?}");
            assert!((interval.end() - high).abs() < 1e-9, "{interval:?}");
        }
        assert_eq!(wilson(0, 0), None);
    }
}
