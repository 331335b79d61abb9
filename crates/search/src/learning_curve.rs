//! The end of a learning curve that is still under way, with uncertainty.
//!
//! Losses fall like power laws: value(t) = a + b (1 + t / c)^-p with b >= 0 (Domhan et al. 2015; Kadra et al. 2023). For
//! each (c, p) of a grid, a and b have a conjugate posterior (normal with an inverse-gamma noise variance); the grid is
//! averaged by the models' evidence. No optimiser, no random numbers.
//!
//! Each shape is scaled to fall from 1 to 0 over the steps seen so far, so that the prior on b means the same for all of
//! them: a curve of which little is seen may be bent anyhow or hardly at all, and its end is as uncertain as that.

use crate::normal;

/// Exponents p of the grid.
const EXPONENTS: [f64; 9] = [0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2, 1.6, 2.2];
/// Offsets c of the grid: their number, the least as a share of the steps seen, and the greatest as a multiple of all steps.
const OFFSETS: usize = 14;
const LEAST_OFFSET: f64 = 0.01;
const GREATEST_OFFSET: f64 = 3.0;
/// Shape of the prior on the noise's variance, and the deviation that it is about, as a share of the curve's range.
const NOISE_SHAPE: f64 = 2.0;
const NOISE_SHARE: f64 = 0.005;
/// Prior deviation of a and b, as a multiple of the noise's deviation.
const PRIOR_RANGE: f64 = 8.0;
/// Fewest reports that say anything about the end.
const LEAST_REPORTS: usize = 3;

/// One report: the value of a metric, minimised, after a number of steps.
pub type Report = (u64, f64);

/// The predicted end of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extrapolation {
    pub median: f64,
    /// The end lies above this with probability 0.95: the optimistic end.
    pub low: f64,
    /// The end lies below this with probability 0.95.
    pub high: f64,
}

/// Predicts the value after `at` steps from the reports so far; `None` with fewer than three, or where the values rise. Values
/// that are not finite are left out.
pub fn extrapolate(reports: &[Report], at: u64) -> Option<Extrapolation> {
    let reports: Vec<(f64, f64)> = reports
        .iter()
        .filter(|(_, value)| value.is_finite())
        .map(|(step, value)| (*step as f64, *value))
        .collect();
    if reports.len() < LEAST_REPORTS {
        return None;
    }
    let seen = reports.iter().map(|(step, _)| *step).fold(0.0, f64::max);
    let low = reports.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let high = reports
        .iter()
        .map(|(_, value)| *value)
        .fold(f64::NEG_INFINITY, f64::max);
    let range = (high - low).max(1e-6 * high.abs()).max(1e-12);
    let models: Vec<Model> = offsets(seen, at as f64)
        .flat_map(|offset| EXPONENTS.iter().map(move |exponent| (offset, *exponent)))
        .filter_map(|(offset, exponent)| Model::fit(&reports, offset, exponent, range, at as f64))
        .collect();
    let best = models
        .iter()
        .map(|model| model.log_evidence)
        .fold(f64::NEG_INFINITY, f64::max);
    if models.is_empty() || !best.is_finite() {
        return None;
    }
    let quantile = |share: f64| quantile(&models, best, share);
    Some(Extrapolation {
        median: quantile(0.5),
        low: quantile(0.05),
        high: quantile(0.95),
    })
}

/// The grid's offsets, even in the logarithm.
fn offsets(seen: f64, at: f64) -> impl Iterator<Item = f64> {
    let low = (LEAST_OFFSET * seen.max(1.0)).ln();
    let high = (GREATEST_OFFSET * at.max(seen).max(1.0)).ln();
    (0..OFFSETS).map(move |index| (low + (high - low) * index as f64 / (OFFSETS - 1) as f64).exp())
}

/// One power law with its posterior prediction.
#[derive(Clone, Copy, Debug)]
struct Model {
    log_evidence: f64,
    mean: f64,
    deviation: f64,
}

impl Model {
    /// Conjugate regression of the reports on 1 and the scaled (1 + t / c)^-p; `None` where the curve would have to rise.
    fn fit(reports: &[(f64, f64)], offset: f64, exponent: f64, range: f64, at: f64) -> Option<Self> {
        let shape = |step: f64| (1.0 + step / offset).powf(-exponent);
        let steps = || reports.iter().map(|(step, _)| *step);
        let (first, last) = (
            shape(steps().fold(f64::INFINITY, f64::min)),
            shape(steps().fold(0.0, f64::max)),
        );
        if first - last <= 1e-12 {
            return None;
        }
        let basis = |step: f64| (shape(step) - last) / (first - last);
        let count = reports.len() as f64;
        let centre = reports.iter().map(|(_, value)| value).sum::<f64>() / count;
        let prior = 1.0 / (PRIOR_RANGE * PRIOR_RANGE);
        // In units of the range: y = (value - centre) / range. Precision matrix of (a, b), and its right-hand side.
        let (mut aa, mut ab, mut bb, mut ay, mut by, mut yy) = (prior, 0.0, prior, 0.0, 0.0, 0.0);
        for (step, value) in reports {
            let (f, y) = (basis(*step), (value - centre) / range);
            aa += 1.0;
            ab += f;
            bb += f * f;
            ay += y;
            by += f * y;
            yy += y * y;
        }
        let determinant = aa * bb - ab * ab;
        if determinant <= 1e-12 {
            return None;
        }
        let (a, b) = ((bb * ay - ab * by) / determinant, (aa * by - ab * ay) / determinant);
        if b < 0.0 {
            return None;
        }
        let noise_shape = NOISE_SHAPE + count / 2.0;
        let scale = NOISE_SHAPE * NOISE_SHARE * NOISE_SHARE + 0.5 * (yy - a * ay - b * by).max(0.0);
        let f = basis(at);
        let spread = (bb - 2.0 * f * ab + f * f * aa) / determinant;
        // The prediction is a Student t with 2 * shape degrees of freedom; its variance is used with a normal.
        let variance = scale / (noise_shape - 1.0) * spread;
        Some(Self {
            log_evidence: -0.5 * determinant.ln() - noise_shape * scale.ln(),
            mean: centre + range * (a + b * f),
            deviation: range * variance.sqrt(),
        })
    }
}

/// The value below which the mixture of models lies with probability `share`, by bisection.
fn quantile(models: &[Model], best: f64, share: f64) -> f64 {
    let weights: Vec<f64> = models.iter().map(|model| (model.log_evidence - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    let below = |value: f64| {
        let parts = models.iter().zip(&weights);
        parts
            .map(|(model, weight)| weight * normal::cumulative((value - model.mean) / model.deviation))
            .sum::<f64>()
            / total
    };
    let ends = |side: f64| {
        models
            .iter()
            .map(move |model| model.mean + side * 8.0 * model.deviation)
    };
    let mut low = ends(-1.0).fold(f64::INFINITY, f64::min);
    let mut high = ends(1.0).fold(f64::NEG_INFINITY, f64::max);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_clean_power_law_is_found_and_its_end_lies_inside() {
        let curve = |step: u64| 1.9 + 1.1 * (1.0 + step as f64 / 12.0).powf(-0.9);
        for seen in [10, 20, 50] {
            let reports: Vec<Report> = (1..=10)
                .map(|index| (index * seen / 10, curve(index * seen / 10)))
                .collect();
            let end = extrapolate(&reports, 100).unwrap();
            let truth = curve(100);
            assert!(end.low <= truth && truth <= end.high, "{seen}: {end:?} for {truth}");
            assert!((end.median - truth).abs() < 0.1, "{seen}: {end:?} for {truth}");
        }
    }

    /// Steps 1 to `seen` of 100 of a curve that has hardly bent by then.
    #[test]
    fn the_beginning_of_a_curve_does_not_rule_out_its_end() {
        for half_life in [6.0, 12.0, 40.0, 80.0] {
            let curve = |step: u64| 1.6 + 1.1 * (1.0 + step as f64 / half_life).powf(-0.9);
            for seen in [3, 5, 8, 12, 20, 40] {
                let reports: Vec<Report> = (1..=seen).map(|step| (step, curve(step))).collect();
                let (end, truth) = (extrapolate(&reports, 100).unwrap(), curve(100));
                assert!(end.low <= truth, "{seen} of {half_life}: {end:?} for {truth}");
            }
        }
    }

    /// Expected ends are those of the model in numpy, with scipy's normal distribution.
    #[test]
    fn the_ends_are_those_of_an_independent_implementation() {
        let reports: Vec<Report> = (1..=10)
            .map(|step| (step, 1.5 + 1.1 * (1.0 + step as f64 / 20.0).powf(-0.9)))
            .collect();
        let end = extrapolate(&reports, 100).unwrap();
        for (found, expected) in [(end.low, GOLDEN[0]), (end.median, GOLDEN[1]), (end.high, GOLDEN[2])] {
            assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
        }
    }

    const GOLDEN: [f64; 3] = [0.40320433407205025, 1.6020128546610852, 1.9614924752505352];

    #[test]
    fn more_of_the_curve_narrows_the_end() {
        let curve = |step: u64| 1.9 + 1.1 * (1.0 + step as f64 / 12.0).powf(-0.9);
        let width = |seen: u64| {
            let reports: Vec<Report> = (1..=8)
                .map(|index| (index * seen / 8, curve(index * seen / 8)))
                .collect();
            let end = extrapolate(&reports, 200).unwrap();
            end.high - end.low
        };
        assert!(width(16) > width(64) && width(64) > width(160));
    }

    #[test]
    fn few_reports_say_nothing_and_a_flat_curve_stays() {
        assert_eq!(extrapolate(&[(1, 2.0), (2, 1.9)], 10), None);
        assert_eq!(extrapolate(&[(1, 2.0), (2, f64::NAN), (3, 1.9)], 10), None);
        let flat: Vec<Report> = (1..8).map(|step| (step, 2.0)).collect();
        let end = extrapolate(&flat, 20).unwrap();
        assert!(
            (end.median - 2.0).abs() < 1e-3 && end.low <= end.median && end.median <= end.high,
            "{end:?}"
        );
    }

    proptest! {
        #[test]
        fn the_ends_are_ordered_and_scale_with_the_curve(
            start in 0.5..3.0f64, fall in 0.1..2.0f64, exponent in 0.2..1.5f64, factor in 0.1..100.0f64,
        ) {
            let curve = |step: u64| start + fall * (1.0 + step as f64 / 7.0).powf(-exponent);
            let reports: Vec<Report> = (1..9).map(|index| (index * 4, curve(index * 4))).collect();
            let scaled: Vec<Report> = reports.iter().map(|(step, value)| (*step, factor * value)).collect();
            let (a, b) = (extrapolate(&reports, 100).unwrap(), extrapolate(&scaled, 100).unwrap());
            prop_assert!(a.low <= a.median && a.median <= a.high);
            prop_assert!((a.low * factor - b.low).abs() < 1e-6 * factor * a.low.abs().max(1.0));
        }
    }
}
