//! The surrogate of one metric: a Gaussian process on its transformed, standardised values.
//!
//! A metric that is positive throughout may be modelled by its logarithm; whichever explains the data better (the evidence,
//! the change of variables counted) is taken. With a prior, the logarithm of measured over predicted is modelled; of a
//! cost, its logarithm, so that no prediction lies below zero.

use rayon::prelude::*;

use super::marginal::{Marginal, Shape};
use super::observations::{LEAST_VALUES, MetricData, Modelled};
use crate::Prior;
use crate::encode::{Encoding, Point};
use crate::gp;
use crate::gp::{Effort, FitInput, Gp};
use peft_tune_core::study::Params;

/// Most points that hyper-parameters are fitted to.
const FITTED_POINTS: usize = 100;
/// Most points that the posterior uses: predictions take quadratic time, and a study of a thousand trials has many that
/// say the same.
const CONDITIONED_POINTS: usize = 250;

/// Largest ratio of two values that are modelled by their logarithm.
const MOST_SPAN: f64 = 1e3;

/// A fitted surrogate.
#[derive(Clone, Debug)]
pub(super) struct Output {
    gp: Gp,
    shape: Shape,
    /// Mean and standard deviation of the transformed values.
    location: f64,
    spread: f64,
    /// Whether a prior's expectation was taken off the values.
    shifted: bool,
    /// Evidence for this form of the data: the log posterior of the hyper-parameters over the untransformed values.
    evidence: f64,
}

impl Output {
    /// Fits to what is known of a metric; `None` with fewer than two values.
    pub(super) fn fit(
        encoding: &Encoding,
        modelled: &Modelled,
        data: &MetricData<'_>,
        prior: Option<&dyn Prior>,
    ) -> Option<Self> {
        let part = (data.values.len() > CONDITIONED_POINTS)
            .then(|| data.part(&representative(&data.values, CONDITIONED_POINTS)));
        let data = part.as_ref().unwrap_or(data);
        let shifts: Option<Vec<f64>> = prior.and_then(|prior| {
            let shift = |params: &&Params| modelled.prior_shift(prior, params);
            data.params.iter().map(shift).collect()
        });
        let logarithmic = if modelled.sign > 0.0 {
            Shape::Log
        } else {
            Shape::MinusLog
        };
        let shapes: &[Shape] = match &shifts {
            Some(_) => &[logarithmic],
            None if modelled.is_cost => &[logarithmic],
            None if spans_too_much(&data.values) => &[Shape::Plain],
            None => &[Shape::Plain, logarithmic],
        };
        let rough: Vec<Option<Self>> = shapes
            .par_iter()
            .map(|shape| Self::fit_shape(encoding, modelled, data, *shape, shifts.as_deref(), Effort::Rough))
            .collect();
        let rough = rough
            .into_iter()
            .flatten()
            .max_by(|a, b| a.evidence.total_cmp(&b.evidence))?;
        let mut best = Self::fit_shape(encoding, modelled, data, rough.shape, shifts.as_deref(), Effort::Whole)?;
        best.take_bounds(&data.bounds, modelled, prior);
        Some(best)
    }

    fn fit_shape(
        encoding: &Encoding,
        modelled: &Modelled,
        data: &MetricData<'_>,
        shape: Shape,
        shifts: Option<&[f64]>,
        effort: Effort,
    ) -> Option<Self> {
        let count = data.values.len();
        if count < LEAST_VALUES {
            return None;
        }
        let Standardised {
            location,
            spread,
            targets,
            noises,
            log_jacobian,
        } = Standardised::of(data, shape, shifts)?;
        let whole = FitInput {
            axes: encoding.axes(),
            used: &modelled.used,
            points: &data.points,
            targets: &targets,
            noises: &noises,
        };
        let fit = fit_some(&whole, &data.values, effort)?;
        Some(Self {
            gp: Gp::new(&whole, fit.hyper, None)?,
            shape,
            location,
            spread,
            shifted: shifts.is_some(),
            evidence: fit.log_posterior + log_jacobian - count as f64 * spread.ln(),
        })
    }

    /// Conditions on values of which only a lower bound is known.
    pub(super) fn take_bounds(
        &mut self,
        bounds: &[(Point, &Params, f64)],
        modelled: &Modelled,
        prior: Option<&dyn Prior>,
    ) {
        let prior = prior.filter(|_| self.shifted);
        let shift = |params: &Params| prior.and_then(|prior| modelled.prior_shift(prior, params));
        let bounds: Vec<gp::Bound> = bounds
            .iter()
            .filter_map(|(point, params, above)| {
                let inner = self.shape.inner(*above)? - shift(params).unwrap_or(0.0);
                Some(gp::Bound {
                    point: point.clone(),
                    above: (inner - self.location) / self.spread,
                })
            })
            .collect();
        if bounds.is_empty() {
            return;
        }
        for (bound, site) in bounds.iter().zip(gp::imputed(&self.gp, &bounds)) {
            if let Some((value, noise)) = site {
                self.gp = self.gp.with_observation(&bound.point, value, noise);
            }
        }
    }

    /// Conditions on what is expected of a setting under way.
    pub(super) fn take_expected(&mut self, point: &Point) {
        let (mean, _) = self.gp.predict(point);
        self.gp = self.gp.with_observation(point, mean, self.gp.hyper().noise);
    }

    /// The process itself, for its gradient.
    pub(super) fn gp(&self) -> &Gp {
        &self.gp
    }

    pub(super) fn predict_many(&self, points: &[Point]) -> Vec<(f64, f64)> {
        self.gp.predict_many(points)
    }

    /// Form in which the modelled quantity becomes the value.
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Standard deviation of the transformed values, which the process has as 1.
    pub(super) fn spread(&self) -> f64 {
        self.spread
    }

    /// Whether predictions need the prior's shift.
    pub(super) fn is_shifted(&self) -> bool {
        self.shifted
    }

    /// The value predicted at a point; `shift` is the prior's.
    pub(super) fn marginal_at(&self, point: &Point, shift: f64) -> Marginal {
        self.marginal(self.gp.predict(point), shift)
    }

    /// The value that a prediction of the process means; `shift` is the prior's.
    pub(super) fn marginal(&self, (mean, variance): (f64, f64), shift: f64) -> Marginal {
        Marginal {
            mean: self.location + self.spread * mean + shift,
            deviation: self.spread * variance.sqrt(),
            shape: self.shape,
        }
    }

    /// Derivatives of the marginal's mean and deviation by the process's mean and variance.
    pub(super) fn scale(&self, variance: f64) -> (f64, f64) {
        (self.spread, 0.5 * self.spread / variance.sqrt())
    }
}

/// Values of a metric in one form, as a process is fitted to them.
struct Standardised {
    /// Mean and standard deviation of the transformed values.
    location: f64,
    spread: f64,
    targets: Vec<f64>,
    /// Variance of each target.
    noises: Vec<f64>,
    /// ln of d inner / d value over all values: the density of the values is that of the inner ones times this.
    log_jacobian: f64,
}

impl Standardised {
    /// The values in a form, less what a prior expects of them; `None` where the form cannot give one of them.
    fn of(data: &MetricData<'_>, shape: Shape, shifts: Option<&[f64]>) -> Option<Self> {
        let count = data.values.len();
        let mut inner: Vec<f64> = data
            .values
            .iter()
            .map(|value| shape.inner(*value))
            .collect::<Option<_>>()?;
        let log_jacobian: f64 = match shape {
            Shape::Plain => 0.0,
            Shape::Log | Shape::MinusLog => -data.values.iter().map(|value| value.abs().ln()).sum::<f64>(),
        };
        for (value, shift) in inner.iter_mut().zip(shifts.unwrap_or_default()) {
            *value -= shift;
        }
        let location = inner.iter().sum::<f64>() / count as f64;
        let variance = inner.iter().map(|value| (value - location).powi(2)).sum::<f64>() / count as f64;
        let spread = if variance.sqrt() > 1e-12 * location.abs().max(1e-300) {
            variance.sqrt()
        } else {
            1.0
        };
        let noises = data.values.iter().zip(&data.deviations);
        Some(Self {
            location,
            spread,
            targets: inner.iter().map(|value| (value - location) / spread).collect(),
            noises: noises
                .map(|(value, deviation)| (shape.inner_slope(*value) * deviation / spread).powi(2))
                .collect(),
            log_jacobian,
        })
    }
}

/// Whether values span so many magnitudes that the logarithm of the smallest is an outlier (or does not exist): a value
/// that is zero but for rounding would otherwise decide everything.
fn spans_too_much(values: &[f64]) -> bool {
    let sizes = || values.iter().map(|value| value.abs());
    sizes().fold(0.0, f64::max) > MOST_SPAN * sizes().fold(f64::INFINITY, f64::min)
}

/// Indices of at most `most` values, ascending: the best third, and an even share of the rest.
pub(super) fn representative(values: &[f64], most: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    if order.len() <= most {
        return order;
    }
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let best = most / 3;
    let (rest, share) = (&order[best..], most - best);
    let mut chosen: Vec<usize> = order[..best].to_vec();
    chosen.extend((0..share).map(|index| rest[index * rest.len() / share]));
    chosen.sort_unstable();
    chosen
}

/// Fits hyper-parameters to a part of the data where there are many points: the best ones and an even share of the rest.
fn fit_some(whole: &FitInput<'_>, values: &[f64], effort: Effort) -> Option<gp::Fit> {
    let count = values.len();
    if count <= FITTED_POINTS {
        return gp::fit(whole, effort);
    }
    let chosen = representative(values, FITTED_POINTS);
    let points: Vec<Point> = chosen.iter().map(|index| whole.points[*index].clone()).collect();
    let targets: Vec<f64> = chosen.iter().map(|index| whole.targets[*index]).collect();
    let noises: Vec<f64> = chosen.iter().map(|index| whole.noises[*index]).collect();
    let part = FitInput {
        points: &points,
        targets: &targets,
        noises: &noises,
        ..*whole
    };
    let mut fit = gp::fit(&part, effort)?;
    fit.log_posterior *= count as f64 / FITTED_POINTS as f64;
    Some(fit)
}
