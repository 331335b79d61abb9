//! Observations of which only a bound is known: the memory of a trial that ran out of it lies above the limit, the loss
//! of one that was stopped above what it could still reach.
//!
//! Each such observation is replaced by a normal one (a value and a noise variance) that has the same effect on the
//! posterior, by expectation propagation (Minka 2001; Rasmussen and Williams 2006, chapter 3.6): the posterior without the
//! observation is cut at the bound, and the normal factor that reproduces mean and variance of what is left takes its place,
//! in turns until nothing changes.

use faer::prelude::Solve;
use faer::{Mat, Side};

use super::Gp;
use crate::encode::Point;
use crate::normal;

/// Passes over all observations.
const SWEEPS: usize = 30;
/// Share of each update that is taken, so that observations near each other do not swing.
const DAMPING: f64 = 0.6;
/// Change of a factor's precision, relative to the prior's, at which the passes end.
const TOLERANCE: f64 = 1e-4;

/// An observation known to lie above a value.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) point: Point,
    /// Value that the observation lies above, on the scale of the process's targets.
    pub(crate) above: f64,
}

/// Value and noise variance that stand for each bound, given a process conditioned on everything that is known exactly;
/// `None` for one that says nothing (its prediction lies far above the bound anyway).
pub(crate) fn imputed(gp: &Gp, bounds: &[Bound]) -> Vec<Option<(f64, f64)>> {
    let points: Vec<Point> = bounds.iter().map(|bound| bound.point.clone()).collect();
    let (means, covariance) = gp.predict_jointly(&points);
    let count = bounds.len();
    // Natural parameters of the factors: precision, and precision times value.
    let (mut precision, mut shift) = (vec![0.0; count], vec![0.0; count]);
    for _ in 0..SWEEPS {
        let Some(posterior) = posterior(&means, &covariance, &precision, &shift) else {
            break;
        };
        let mut change: f64 = 0.0;
        for (index, (mean, variance)) in posterior.into_iter().enumerate() {
            let Some((cavity_mean, cavity_variance)) = cavity(mean, variance, precision[index], shift[index]) else {
                continue;
            };
            let bound = bounds[index].above;
            let deviation = (cavity_variance + gp.hyper().noise).sqrt();
            let (cut_mean, cut_variance) = cut(cavity_mean, cavity_variance, deviation, bound);
            let new_precision = (1.0 / cut_variance - 1.0 / cavity_variance).max(0.0);
            let new_shift = cut_mean / cut_variance - cavity_mean / cavity_variance;
            change = change.max((new_precision - precision[index]).abs() * covariance[(index, index)]);
            precision[index] += DAMPING * (new_precision - precision[index]);
            shift[index] += DAMPING * (new_shift - shift[index]);
        }
        if change < TOLERANCE {
            break;
        }
    }
    let site = |index: usize| {
        let informative = precision[index] * covariance[(index, index)] > 1e-6;
        informative.then(|| (shift[index] / precision[index], 1.0 / precision[index]))
    };
    (0..count).map(site).collect()
}

/// Mean and variance at each point with all factors: S (S + T^-1)^-1 in the form that allows precisions of 0.
fn posterior(means: &[f64], covariance: &Mat<f64>, precision: &[f64], shift: &[f64]) -> Option<Vec<(f64, f64)>> {
    let count = means.len();
    let root: Vec<f64> = precision.iter().map(|value| value.sqrt()).collect();
    let inner = Mat::from_fn(count, count, |i, j| {
        f64::from(u8::from(i == j)) + root[i] * covariance[(i, j)] * root[j]
    });
    let factor = inner.llt(Side::Lower).ok()?;
    let scaled = Mat::from_fn(count, count, |i, j| root[i] * covariance[(i, j)]);
    let solved = factor.solve(&scaled);
    // m + Sigma (nu - T m): the factors pull the prior mean. Of Sigma only the diagonal and this product are needed.
    let pull = Mat::from_fn(count, 1, |j, _| shift[j] - precision[j] * means[j]);
    let moved = covariance * &pull - scaled.transpose() * (&solved * &pull);
    let marginal = |i: usize| {
        let explained: f64 = (0..count).map(|k| scaled[(k, i)] * solved[(k, i)]).sum();
        (means[i] + moved[(i, 0)], covariance[(i, i)] - explained)
    };
    let marginals: Vec<(f64, f64)> = (0..count).map(marginal).collect();
    marginals
        .iter()
        .all(|(mean, variance)| mean.is_finite() && *variance > 0.0)
        .then_some(marginals)
}

/// A marginal without one factor.
fn cavity(mean: f64, variance: f64, precision: f64, shift: f64) -> Option<(f64, f64)> {
    let left = 1.0 / variance - precision;
    (left > 0.0).then(|| ((mean / variance - shift) / left, 1.0 / left))
}

/// Moments of a normal f given that f plus noise lies above `bound`; `deviation` is that of f plus noise (Rasmussen and
/// Williams 2006, equation 3.58).
fn cut(mean: f64, variance: f64, deviation: f64, bound: f64) -> (f64, f64) {
    let z = (mean - bound) / deviation;
    if z > 30.0 {
        return (mean, variance);
    }
    let ratio = 1.0 / normal::mills(-z);
    let share = variance / (deviation * deviation) * ratio * (z + ratio);
    (mean + variance * ratio / deviation, variance * (1.0 - share).max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::Axis;
    use crate::gp::fit::FitInput;
    use crate::gp::hyper::Hyper;

    fn process(points: &[Point], targets: &[f64]) -> Gp {
        let data = FitInput {
            axes: &[Axis::Number],
            used: &[0],
            points,
            targets,
            noises: &[],
        };
        Gp::new(&data, Hyper::with_lengthscale(0.5, 1), None).unwrap()
    }

    #[test]
    fn one_bound_gives_the_truncated_normal() {
        let gp = process(&[vec![0.0]], &[0.0]);
        let point = vec![0.9];
        let (mean, variance) = gp.predict(&point);
        let bound = Bound {
            point: point.clone(),
            above: mean + 1.0,
        };
        let (value, noise) = imputed(&gp, &[bound])[0].unwrap();
        let after = gp.with_observation(&point, value, noise).predict(&point);
        let expected = cut(mean, variance, (variance + gp.hyper().noise).sqrt(), mean + 1.0);
        assert!((after.0 - expected.0).abs() < 1e-3 && (after.1 - expected.1).abs() < 1e-3);
        assert!(after.0 > mean + 1.0 && after.1 < variance);
    }

    #[test]
    fn a_bound_far_below_says_nothing() {
        let gp = process(&[vec![0.0]], &[0.0]);
        let bound = Bound {
            point: vec![0.5],
            above: -40.0,
        };
        assert_eq!(imputed(&gp, &[bound]), [None]);
    }

    /// Two correlated bounds against brute-force sampling of the joint posterior (numpy, 4 million samples).
    #[test]
    fn correlated_bounds_agree_with_sampling() {
        let gp = process(&[vec![0.0]], &[0.0]);
        let points = [vec![0.6], vec![0.7]];
        let bounds: Vec<Bound> = points
            .iter()
            .map(|point| Bound {
                point: point.clone(),
                above: 0.8,
            })
            .collect();
        let (mut grown, (means, covariance)) = (gp.clone(), gp.predict_jointly(&points));
        for (point, site) in points.iter().zip(imputed(&gp, &bounds)) {
            let (value, noise) = site.unwrap();
            grown = grown.with_observation(point, value, noise);
        }
        let sampled = sampled_mean(&means, &covariance, 0.8);
        let (mean, _) = grown.predict(&points[0]);
        assert!((mean - sampled).abs() < 0.02, "{mean} for {sampled}");
    }

    /// Mean of the first of two correlated normals given that both lie above `bound`, on a grid.
    fn sampled_mean(means: &[f64], covariance: &Mat<f64>, bound: f64) -> f64 {
        let a = covariance[(0, 0)].sqrt();
        let b = covariance[(1, 0)] / a;
        let c = (covariance[(1, 1)] - b * b).sqrt();
        let (mut sum, mut weight) = (0.0, 0.0);
        for step in -600..600 {
            let z = f64::from(step) / 100.0;
            let first = means[0] + a * z;
            if first > bound {
                let density = normal::density(z) * normal::cumulative((means[1] + b * z - bound) / c);
                sum += first * density;
                weight += density;
            }
        }
        sum / weight
    }
}
