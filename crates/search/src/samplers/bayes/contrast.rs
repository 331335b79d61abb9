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
    let held = HeldSettings::of(candidates, index, places, shift);
    if held.points.is_empty() {
        return None;
    }
    let means = Means::of(output, &held, places.len());
    let center = means.m.iter().sum::<f64>() / means.m.len() as f64;
    Some(Contrasts {
        center,
        deviations: means.deviations(),
        apart: means.apart(),
        means: means.m.into_iter().map(|m| m - center).collect(),
    })
}

/// Settings at which every value of a parameter is looked at, row by row.
struct HeldSettings {
    points: Vec<Point>,
    /// Shift of the prior at each.
    shifts: Vec<f64>,
}

impl HeldSettings {
    /// Points with every value at the same settings of the other parameters, as far as all of a row can be predicted.
    fn of(candidates: &Candidates<'_>, index: usize, places: &[f64], shift: &dyn Fn(&Params) -> Option<f64>) -> Self {
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
        Self { points, shifts }
    }
}

/// m of each value of a parameter, with the covariance of all.
struct Means {
    m: Vec<f64>,
    covariance: Vec<Vec<f64>>,
    /// Standard deviation of the metric's values, of which the covariance is a multiple.
    spread: f64,
}

impl Means {
    /// The means over held settings of so many values.
    fn of(output: &Output, held: &HeldSettings, values: usize) -> Self {
        let rows = held.points.len() / values;
        let (joint, covariance) = output.gp().predict_jointly(&held.points);
        let inner: Vec<f64> = joint
            .iter()
            .zip(&held.shifts)
            .map(|(mean, shift)| output.marginal((*mean, 0.0), *shift).mean)
            .collect();
        // Sums over the settings of the others first.
        let per = 1.0 / rows as f64;
        let mean = |value: usize| (0..rows).map(|row| inner[row * values + value]).sum::<f64>() * per;
        let between = |a: usize, b: usize| {
            let pairs = (0..rows).flat_map(|i| (0..rows).map(move |j| (i, j)));
            pairs
                .map(|(i, j)| covariance[(i * values + a, j * values + b)])
                .sum::<f64>()
                * per
                * per
        };
        Self {
            m: (0..values).map(mean).collect(),
            covariance: (0..values)
                .map(|a| (0..values).map(|b| between(a, b)).collect())
                .collect(),
            spread: output.spread(),
        }
    }

    /// Standard deviation of a weighted sum of the means.
    fn deviation(&self, weights: &[f64]) -> f64 {
        let row = |a: usize| self.covariance[a].iter().zip(weights).map(|(k, w)| k * w).sum::<f64>();
        let sum: f64 = weights.iter().enumerate().map(|(a, weight)| weight * row(a)).sum();
        self.spread * sum.max(0.0).sqrt()
    }

    /// Standard deviation of c of each value.
    fn deviations(&self) -> Vec<f64> {
        let values = self.m.len();
        let all = 1.0 / values as f64;
        let deviation = |value: usize| {
            let weights: Vec<f64> = (0..values)
                .map(|other| f64::from(u8::from(other == value)) - all)
                .collect();
            self.deviation(&weights)
        };
        (0..values).map(deviation).collect()
    }

    /// The values with the lowest and the highest mean.
    fn apart(&self) -> Option<Apart> {
        let (values, m) = (self.m.len(), &self.m);
        let order = |a: &usize, b: &usize| m[*a].total_cmp(&m[*b]);
        let (low, high) = (0..values).min_by(order).zip((0..values).max_by(order))?;
        let mut weights = vec![0.0; values];
        weights[high] += 1.0;
        weights[low] -= 1.0;
        Some(Apart {
            low,
            high,
            difference: m[high] - m[low],
            deviation: self.deviation(&weights),
        })
    }
}
