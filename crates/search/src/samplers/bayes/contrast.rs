//! How a metric differs between the values of one parameter, the other settings held.
//!
//! | name | meaning |
//! |---|---|
//! | v, o | a value of the parameter; a setting of all others, one of `HELD` spread over the space |
//! | W(v, o) | the modelled quantity there, the prior's part included: a Gaussian process |
//! | m(v) | mean over o of W(v, o) |
//! | c(v) | m(v) less its mean over all v: the contrast |
//!
//! Every value meets the same settings of the others, so an unbalanced history (one optimizer tried with small ranks only)
//! does not speak for the value that it went with. c is linear in W: its deviation comes from the joint posterior, and is
//! large where the trials cannot tell the parameter from what it went with.

use super::candidates::Candidates;
use super::output::Output;
use crate::encode::Point;
use crate::sobol::sobol_point;
use peft_tune_core::study::Params;

/// Settings of the other parameters that each value meets.
const HELD: usize = 20;
/// Settings that are looked through for those in which the parameter is active.
const MOST_LOOKED_AT: u32 = 256;

/// The contrasts of a parameter's values, on the scale of the metric's model.
#[derive(Clone, Debug, Default)]
pub(super) struct Contrasts {
    /// Mean of m over all values.
    pub(super) center: f64,
    /// c of each value, with its standard deviation.
    pub(super) means: Vec<f64>,
    pub(super) deviations: Vec<f64>,
    pub(super) apart: Option<Apart>,
}

/// The values of a parameter with the lowest and the highest c.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// Numbers of the two values.
    pub(super) low: usize,
    pub(super) high: usize,
    /// Difference of the two c, with its standard deviation.
    pub(super) difference: f64,
    pub(super) deviation: f64,
}

/// The contrasts of `output` between the coordinates `places` of a parameter; `shift` is the prior's at a setting, `None`
/// where that cannot be predicted. `None` where no setting has the parameter, or none can be predicted.
pub(super) fn contrasts(
    output: &Output,
    candidates: &Candidates<'_>,
    index: usize,
    places: &[f64],
    shift: &dyn Fn(&Params) -> Option<f64>,
) -> Option<Contrasts> {
    let values = places.len();
    let (points, shifts) = held_settings(candidates, index, places, shift);
    let held = points.len() / values.max(1);
    if held == 0 {
        return None;
    }
    let (joint, covariance) = output.gp().predict_jointly(&points);
    let inner: Vec<f64> = joint
        .iter()
        .zip(&shifts)
        .map(|(mean, shift)| output.marginal((*mean, 0.0), *shift).mean)
        .collect();
    // Sums over the settings of the others first: m and its covariance.
    let per = 1.0 / held as f64;
    let m: Vec<f64> = (0..values)
        .map(|value| (0..held).map(|row| inner[row * values + value]).sum::<f64>() * per)
        .collect();
    let between = |a: usize, b: usize| {
        let rows = (0..held).flat_map(|i| (0..held).map(move |j| (i, j)));
        rows.map(|(i, j)| covariance[(i * values + a, j * values + b)])
            .sum::<f64>()
            * per
            * per
    };
    let k: Vec<Vec<f64>> = (0..values)
        .map(|a| (0..values).map(|b| between(a, b)).collect())
        .collect();
    let variance = |weights: &[f64]| {
        let row = |a: usize| k[a].iter().zip(weights).map(|(k, w)| k * w).sum::<f64>();
        let sum: f64 = weights.iter().enumerate().map(|(a, weight)| weight * row(a)).sum();
        output.spread() * sum.max(0.0).sqrt()
    };
    let center = m.iter().sum::<f64>() / values as f64;
    let all = 1.0 / values as f64;
    let deviation = |value: usize| {
        let weights: Vec<f64> = (0..values)
            .map(|other| f64::from(u8::from(other == value)) - all)
            .collect();
        variance(&weights)
    };
    let order = |a: &usize, b: &usize| m[*a].total_cmp(&m[*b]);
    let ends = (0..values).min_by(order).zip((0..values).max_by(order));
    let apart = ends.map(|(low, high)| {
        let mut weights = vec![0.0; values];
        weights[high] += 1.0;
        weights[low] -= 1.0;
        Apart {
            low,
            high,
            difference: m[high] - m[low],
            deviation: variance(&weights),
        }
    });
    Some(Contrasts {
        center,
        deviations: (0..values).map(deviation).collect(),
        means: m.into_iter().map(|m| m - center).collect(),
        apart,
    })
}

/// Points with every value at the same settings of the other parameters, row by row, with the prior's shift there.
fn held_settings(
    candidates: &Candidates<'_>,
    index: usize,
    places: &[f64],
    shift: &dyn Fn(&Params) -> Option<f64>,
) -> (Vec<Point>, Vec<f64>) {
    let values = places.len();
    let (mut points, mut shifts) = (Vec::new(), Vec::new());
    for sample in 0..MOST_LOOKED_AT {
        if points.len() >= HELD * values {
            break;
        }
        let mut others = candidates.at(&sobol_point(sample, candidates.dimensions(), 0));
        if !candidates.has(&others, index) {
            continue;
        }
        let mut at = |place: &f64| -> (Point, Option<f64>) {
            others[index] = *place;
            (candidates.settled(&others), shift(&candidates.params(&others)))
        };
        let (row, shifted): (Vec<Point>, Vec<Option<f64>>) = places.iter().map(&mut at).unzip();
        if let Some(shifted) = shifted.into_iter().collect::<Option<Vec<f64>>>() {
            points.extend(row);
            shifts.extend(shifted);
        }
    }
    (points, shifts)
}
