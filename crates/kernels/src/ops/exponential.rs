//! exp, the logistic function and tanh in F32, branch-free, for loops that the compiler vectorises.
//!
//! exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln(2)/2, exp(r) by the polynomial of the Cephes library's
//! `expf`. The relative error is below 2e-7, measured against F64 in the tests.

use super::simd::multiply_add;

/// exp(x) for x <= 88; 0 below -87.3 (where F32 becomes subnormal), so also for -infinity.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_375;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const LOWEST: f32 = -87.336_54;
    let bounded = if x > 88.37 { 88.37 } else { x };
    let shifted = multiply_add::<FMA>(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FMA>(n, -LN2_LOW, multiply_add::<FMA>(n, -LN2_HIGH, bounded));
    let p = polynomial::<FMA, 6>(
        r,
        [
            1.987_569_1e-4,
            1.398_2e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ],
    );
    let mantissa = multiply_add::<FMA>(p, r * r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < LOWEST { 0.0 } else { mantissa * power }
}

/// (s, 1 - s) with s = 1 / (1 + exp(-x)), both to full relative precision.
#[inline(always)]
pub(super) fn logistic<const FMA: bool>(x: f32) -> (f32, f32) {
    let e = exp::<FMA>(-x.abs());
    let large = 1.0 / (1.0 + e);
    let small = e * large;
    if x < 0.0 { (small, large) } else { (large, small) }
}

/// tanh(x).
#[inline(always)]
pub(super) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    let e = exp::<FMA>(-2.0 * magnitude);
    let far = ((1.0 - e) / (1.0 + e)).copysign(x);
    // The difference above cancels near zero; the Cephes library's `tanhf` has this polynomial for |x| < 0.625.
    let z = x * x;
    let p = polynomial::<FMA, 5>(
        z,
        [
            -5.704_988_7e-3,
            2.063_908_9e-2,
            -5.373_971_6e-2,
            1.333_144_2e-1,
            -3.333_328_2e-1,
        ],
    );
    let near = multiply_add::<FMA>(p * z, x, x);
    if magnitude < 0.625 { near } else { far }
}

/// The polynomial with these coefficients, the highest power first.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = multiply_add::<FMA>(sum, x, *coefficient);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(low: f64, high: f64) -> impl Iterator<Item = f32> {
        (0..=200_000).map(move |step| (low + (high - low) * f64::from(step) / 200_000.0) as f32)
    }

    #[test]
    fn exp_is_accurate_where_f32_is_normal() {
        for x in sweep(-87.3, 88.0) {
            let exact = f64::from(x).exp();
            assert!((f64::from(exp::<true>(x)) / exact - 1.0).abs() < 2e-7, "{x}");
            assert!((f64::from(exp::<false>(x)) / exact - 1.0).abs() < 2e-7, "{x}");
        }
        for exp in [exp::<true>, exp::<false>] {
            assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
            assert!(exp(f32::NAN).is_nan());
        }
    }

    #[test]
    fn logistic_and_tanh_are_accurate_on_both_sides() {
        accurate_on_both_sides(logistic::<true>, tanh::<true>);
        accurate_on_both_sides(logistic::<false>, tanh::<false>);
    }

    fn accurate_on_both_sides(logistic: fn(f32) -> (f32, f32), tanh: fn(f32) -> f32) {
        for x in sweep(-30.0, 30.0) {
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            let (s, rest) = logistic(x);
            assert!((f64::from(s) / exact - 1.0).abs() < 4e-7, "logistic {x}");
            let exact_rest = 1.0 / (1.0 + f64::from(x).exp());
            assert!((f64::from(rest) / exact_rest - 1.0).abs() < 4e-7, "1 - logistic {x}");
            let exact = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - exact).abs() <= 4e-7 * exact.abs(), "tanh {x}");
        }
        assert!(logistic(f32::NAN).0.is_nan() && tanh(f32::NAN).is_nan());
    }
}
