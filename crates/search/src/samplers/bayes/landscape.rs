//! The acquisition over a search space: what the next trial is expected to gain.
//!
//! ln a(x) = ln EHVI(x) + sum over limits of ln P(limit kept) + ln P(no other failure) - ln(expected cost), where the last
//! term is there only if proposals are weighed by their cost.

use std::collections::HashSet;

use rayon::prelude::*;

use super::aim::Aim;
use super::ehvi::Ehvi;
use super::marginal::Marginal;
use super::observations::EvaluatedPoint;
use super::surrogates::Surrogates;
use super::trainings::Trainings;
use crate::encode::{Point, key};
use crate::gp::{Gp, Slope};
use crate::normal;

/// Points whose acquisition is computed as one task.
const BLOCK: usize = 64;
/// Variance of the failure process below which two outcomes at one setting would have to agree.
const FAILURE_NOISE: f64 = 0.1;

/// Everything the acquisition is made of.
pub(super) struct Landscape<'a> {
    pub(super) surrogates: Surrogates<'a>,
    /// Complete settings, and those under way as if they ended as they are expected to.
    pub(super) counted: Vec<EvaluatedPoint>,
    /// Improvement of the front's hypervolume; `None` while nothing feasible is known: then only the limits count.
    pub(super) ehvi: Option<Ehvi>,
    /// Process on outcomes, 1 for success and -1 for failure.
    pub(super) failure: Option<Gp>,
    /// Output that predicts what a trial costs, by its logarithm.
    pub(super) cost: Option<usize>,
    /// Improvement that is looked for.
    pub(super) aim: Aim,
    /// Trainings that the points stand for, each with all variants that share its loss; `None` where a point is one
    /// setting.
    pub(super) trainings: Option<Trainings<'a>>,
}

impl Landscape<'_> {
    /// ln a of every point, in parallel.
    pub(super) fn log_values(&self, points: &[Point]) -> Vec<f64> {
        let blocks: Vec<Vec<f64>> = points.par_chunks(BLOCK).map(|block| self.log_block(block)).collect();
        blocks.concat()
    }

    fn log_block(&self, points: &[Point]) -> Vec<f64> {
        let outputs = &self.surrogates.outputs;
        let predictions: Vec<Vec<(f64, f64)>> = outputs.iter().map(|output| output.predict_many(points)).collect();
        let failure = self.failure.as_ref().map(|gp| gp.predict_many(points));
        let value = |(index, point): (usize, &Point)| {
            let Some(shifts) = self.surrogates.shifts_at(point) else {
                return f64::NEG_INFINITY;
            };
            let marginals: Vec<Marginal> = outputs
                .iter()
                .enumerate()
                .map(|(output, model)| model.marginal(predictions[output][index], shifts[output]))
                .collect();
            let safe = failure
                .as_ref()
                .map_or(0.0, |predictions| log_success(predictions[index]).0);
            safe + self.surrogates.log_kept(&marginals) + self.log_gain(point, &marginals) - self.log_cost(&marginals)
        };
        points.iter().enumerate().map(value).collect()
    }

    /// ln a with its gradient by the continuous coordinates.
    pub(super) fn log_slope(&self, point: &Point) -> (f64, Vec<f64>) {
        let Some(shifts) = self.surrogates.shifts_at(point) else {
            return (f64::NEG_INFINITY, vec![0.0; point.len()]);
        };
        let outputs = &self.surrogates.outputs;
        let slopes: Vec<Slope> = outputs.iter().map(|output| output.gp().slope(point)).collect();
        let marginals: Vec<Marginal> = outputs
            .iter()
            .zip(&slopes)
            .zip(&shifts)
            .map(|((output, slope), shift)| output.marginal((slope.mean, slope.variance), *shift))
            .collect();
        let (mut value, mut by_output) = self.log_gain_slope(point, &marginals);
        for (output, limit) in &self.surrogates.limits {
            let part = limit.log_kept(&marginals[*output]);
            value += part.value;
            by_output[*output].0 += part.by_mean;
            by_output[*output].1 += part.by_deviation;
        }
        if let Some(cost) = self.cost {
            value -= self.log_cost(&marginals);
            by_output[cost].0 -= 1.0;
        }
        let mut gradient = vec![0.0; point.len()];
        for ((output, slope), (by_mean, by_deviation)) in outputs.iter().zip(&slopes).zip(by_output) {
            let (mean_scale, variance_scale) = output.scale(slope.variance);
            add(&mut gradient, &slope.mean_gradient, by_mean * mean_scale);
            add(&mut gradient, &slope.variance_gradient, by_deviation * variance_scale);
        }
        if let Some(failure) = &self.failure {
            let slope = failure.slope(point);
            let (log, by_mean, by_variance) = log_success((slope.mean, slope.variance));
            value += log;
            add(&mut gradient, &slope.mean_gradient, by_mean);
            add(&mut gradient, &slope.variance_gradient, by_variance);
        }
        (value, gradient)
    }

    /// The keys of tried points: where trainings are searched, of what they need not be repeated for.
    pub(super) fn tried(&self, points: &[Point]) -> HashSet<Vec<u64>> {
        points.iter().map(|point| self.tried_key(point)).collect()
    }

    /// Key of what a point need not be tried again for.
    pub(super) fn tried_key(&self, point: &[f64]) -> Vec<u64> {
        match &self.trainings {
            Some(trainings) => trainings.tried_key(point),
            None => key(point),
        }
    }

    fn log_gain(&self, point: &Point, marginals: &[Marginal]) -> f64 {
        if self.aim != Aim::Front || self.trainings.is_some() {
            return self.log_gain_slope(point, marginals).0;
        }
        self.ehvi
            .as_ref()
            .map_or(0.0, |ehvi| ehvi.log_value(&marginals[..self.surrogates.objectives]))
    }

    fn log_gain_slope(&self, point: &Point, marginals: &[Marginal]) -> (f64, Vec<(f64, f64)>) {
        if let Some(gain) = self.aim.log_gain(marginals) {
            return gain;
        }
        let mut by_output = vec![(0.0, 0.0); marginals.len()];
        if let Some(trainings) = self.trainings.as_ref().filter(|_| self.ehvi.is_some()) {
            let loss = &marginals[trainings.loss()];
            let gain = match &self.aim {
                Aim::Knee(knee) => knee.log_gain(trainings.doublings(&self.surrogates, point), loss),
                _ => trainings.log_gain(&self.surrogates, point, marginals),
            };
            by_output[trainings.loss()] = (gain.by_mean, gain.by_deviation);
            return (gain.value, by_output);
        }
        let Some(ehvi) = &self.ehvi else {
            return (0.0, by_output);
        };
        let (value, slopes) = ehvi.log_slope(&marginals[..self.surrogates.objectives]);
        by_output[..self.surrogates.objectives].copy_from_slice(&slopes);
        (value, by_output)
    }

    /// ln of the median cost.
    fn log_cost(&self, marginals: &[Marginal]) -> f64 {
        self.cost.map_or(0.0, |cost| marginals[cost].mean)
    }
}

/// ln P(success) under the failure process, with derivatives by its mean and variance.
fn log_success((mean, variance): (f64, f64)) -> (f64, f64, f64) {
    let total = variance + FAILURE_NOISE;
    let z = mean / total.sqrt();
    let log = normal::log_cumulative(z);
    let slope = (normal::log_density(z) - log).exp();
    (log, slope / total.sqrt(), -0.5 * slope * z / total)
}

fn add(sum: &mut [f64], values: &[f64], factor: f64) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}
