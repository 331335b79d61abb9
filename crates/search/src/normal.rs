//! The standard normal distribution, with forms that stay exact far out in its tails.
//!
//! | name | meaning |
//! |---|---|
//! | phi, Phi | density and distribution function |
//! | M(x) | Mills ratio (1 - Phi(x)) / phi(x), which falls from infinity to 0 like 1/x |
//! | h(z) | phi(z) + z Phi(z): the expected improvement of a standard normal over -z |

const LOG_SQRT_2PI: f64 = 0.918_938_533_204_672_7;

/// (x + 5) M(x) for x >= 0 in powers of t = (5 - x) / (5 + x), exact to the last digits (`tests/golden/search/normal.py`).
const MILLS: [f64; 28] = [
    1.928_081_047_153_157_6,
    1.667_866_595_188_959_9,
    1.241_547_061_573_866,
    7.859_110_755_465_599_9e-1,
    4.136_447_157_327_101_6e-1,
    1.732_547_340_866_905_4e-1,
    5.212_550_241_169_834_7e-2,
    7.503_282_827_344_661_9e-3,
    -1.999_961_968_350_593e-3,
    -1.365_859_215_209_623_1e-3,
    -1.488_330_974_330_533e-4,
    1.247_359_323_737_963_9e-4,
    4.181_478_270_845_680_2e-5,
    -9.975_690_055_793_961_9e-6,
    -6.945_608_523_185_676_5e-6,
    8.381_134_148_187_081_6e-7,
    1.094_814_121_747_490_4e-6,
    -9.983_671_115_690_551_8e-8,
    -1.779_918_842_931_453_2e-7,
    2.070_727_017_086_278e-8,
    2.963_511_608_910_106_7e-8,
    -5.489_021_844_435_496_6e-9,
    -4.718_246_262_734_656_2e-9,
    1.332_374_459_282_348_4e-9,
    6.165_821_787_229_058_9e-10,
    -2.373_305_317_052_158_4e-10,
    -4.677_255_907_797_917_4e-11,
    2.209_123_248_627_087_7e-11,
];

/// (x + 5)^2 (1 - x M(x)) for x >= 0 in powers of t.
const ONE_LESS: [f64; 28] = [
    3.595_947_642_342_117_6,
    5.818_827_313_525_651_7,
    6.082_374_411_361_278_1,
    4.798_223_165_117_083,
    2.934_497_249_096_989,
    1.352_281_418_990_241,
    4.174_014_966_736_394_5e-1,
    4.402_656_687_359_613_4e-2,
    -3.029_239_065_615_090_3e-2,
    -1.514_692_314_286_259_5e-2,
    -2.650_687_860_673_291_7e-4,
    1.998_608_683_188_027_3e-3,
    4.139_080_682_166_316_2e-4,
    -2.368_985_993_918_235_6e-4,
    -9.161_200_733_939_590_3e-5,
    3.092_801_458_616_331_9e-5,
    1.691_373_547_921_183_7e-5,
    -5.003_193_661_420_719_5e-6,
    -2.987_141_588_701_254_6e-6,
    1.009_912_970_600_183_6e-6,
    5.058_418_809_776_143_2e-7,
    -2.273_624_084_385_723e-7,
    -7.711_073_054_826_792_1e-8,
    4.843_652_655_372_428_9e-8,
    9.204_363_301_842_556_3e-9,
    -7.962_690_337_450_441_2e-9,
    -6.220_873_582_001_728_2e-10,
    7.071_714_291_674_877_8e-10,
];

/// phi(x), the density.
pub(crate) fn density(x: f64) -> f64 {
    log_density(x).exp()
}

/// ln phi(x).
pub(crate) fn log_density(x: f64) -> f64 {
    -0.5 * x * x - LOG_SQRT_2PI
}

/// Phi(x), the probability of a value below x.
pub(crate) fn cumulative(x: f64) -> f64 {
    let tail = density(x) * upper_mills(x.abs());
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// ln Phi(x), exact however small Phi(x) is.
pub(crate) fn log_cumulative(x: f64) -> f64 {
    if x > 0.0 {
        (-density(x) * upper_mills(x)).ln_1p()
    } else {
        log_density(x) + upper_mills(-x).ln()
    }
}

/// M(x) = (1 - Phi(x)) / phi(x). Overflows to infinity below about -38.
pub(crate) fn mills(x: f64) -> f64 {
    if x >= 0.0 {
        upper_mills(x)
    } else {
        1.0 / density(x) - upper_mills(-x)
    }
}

/// ln h(z), exact for any z (Ament et al. 2023, equation 9 and appendix A.1).
pub(crate) fn log_improvement(z: f64) -> f64 {
    if z > 0.0 {
        improvement(z).ln()
    } else {
        log_density(z) + one_less_scaled_mills(-z).ln()
    }
}

/// h(z) = phi(z) + z Phi(z); underflows to 0 below about -38.
pub(crate) fn improvement(z: f64) -> f64 {
    let below = density(z) * one_less_scaled_mills(z.abs());
    // h(z) - h(-z) = z.
    if z > 0.0 { z + below } else { below }
}

/// The derivative of ln h at z: Phi(z) / h(z).
pub(crate) fn log_improvement_slope(z: f64) -> f64 {
    if z > 0.0 {
        cumulative(z) / improvement(z)
    } else {
        upper_mills(-z) / one_less_scaled_mills(-z)
    }
}

/// M(x) for x >= 0.
fn upper_mills(x: f64) -> f64 {
    polynomial(&MILLS, (5.0 - x) / (5.0 + x)) / (x + 5.0)
}

/// 1 - x M(x) = h(-x) / phi(x) for x >= 0, which tends to 1/x^2.
fn one_less_scaled_mills(x: f64) -> f64 {
    polynomial(&ONE_LESS, (5.0 - x) / (5.0 + x)) / ((x + 5.0) * (x + 5.0))
}

/// A polynomial in t, in four interleaved Horner schemes so that they run side by side.
fn polynomial<const N: usize>(coefficients: &[f64; N], t: f64) -> f64 {
    let t2 = t * t;
    let t4 = t2 * t2;
    let mut sums = [0.0; 4];
    for four in coefficients.chunks_exact(4).rev() {
        for (sum, coefficient) in sums.iter_mut().zip(four) {
            *sum = *sum * t4 + coefficient;
        }
    }
    (sums[0] + t * sums[1]) + t2 * (sums[2] + t * sums[3])
}

/// ln(1 - exp(x)) for x < 0, exact at both ends (Maechler 2012).
pub(crate) fn log_one_less_exp(x: f64) -> f64 {
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
            close(
                log_cumulative(-x),
                (expected * density(x)).ln().max(log_density(x) + expected.ln()),
            );
        }
        for (x, expected) in GOLDEN_CUMULATIVE {
            close(cumulative(x), expected);
        }
        for (z, expected) in GOLDEN_LOG_H {
            close(log_improvement(z), expected);
        }
    }

    const GOLDEN_MILLS: [(f64, f64); 6] = [
        (-3.0, 225.334_896_220_349_12),
        (2.0, 0.421_369_229_288_054_47),
        (5.9, 0.164_991_545_300_323_82),
        (6.1, 0.159_843_528_997_826_32),
        (40.0, 0.024_984_404_205_720_571),
        (1e5, 9.999_999_999e-6),
    ];
    const GOLDEN_CUMULATIVE: [(f64, f64); 4] = [
        (-1.0, 0.158_655_253_931_457_05),
        (0.3, 0.617_911_422_188_952_64),
        (-8.0, 6.220_960_574_271_784_1e-16),
        (-30.0, 4.906_713_927_148_187_1e-198),
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
