//! Corrections of predictions by what other trials measured.
//!
//! | symbol | meaning |
//! |---|---|
//! | x (4,) | share of a predicted step's time by part: products, adapters, attention, passes |
//! | c (4,) | factor on the time of each part; N(1, P) before any trial |
//! | y | measured over predicted seconds of a token: x . c + e, e ~ N(0, r) |
//!
//! Each trial is one update of a Kalman filter with state c: s = x P x + r; k = P x / s; c += k (y - x . c);
//! P -= k (P x)^T. A predicted time is then multiplied by x . c, with relative variance x P x + r. Memory has one factor
//! of the same kind.

use super::prediction::Prediction;
use super::seconds::TIME_PARTS;

/// Relative deviation of a measured throughput from what the factors can explain.
const TIME_NOISE: f64 = 0.04;
/// Relative deviation of a measured peak memory from what the factors can explain.
const MEMORY_NOISE: f64 = 0.005;
/// Share of the variance before any trial that all parts have in common.
const COMMON: f64 = 0.5;

/// Factors on predictions, learned from measured trials.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    time: [f64; TIME_PARTS],
    time_covariance: [[f64; TIME_PARTS]; TIME_PARTS],
    memory: f64,
    memory_variance: f64,
}

/// A predicted value with the relative standard deviation of its error.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Uncertain {
    pub value: f64,
    pub deviation: f64,
}

impl Correction {
    /// No trial yet: relative deviations of throughput and memory as the machine's kind has them.
    pub fn new(time_deviation: f64, memory_deviation: f64) -> Self {
        let (variance, mut covariance) = (time_deviation.powi(2), [[0.0; TIME_PARTS]; TIME_PARTS]);
        for (index, row) in covariance.iter_mut().enumerate() {
            row.fill(COMMON * variance);
            // Shares below one average the parts' own variances: these are larger than what is left of the whole.
            row[index] += 2.0 * (1.0 - COMMON) * variance;
        }
        Self {
            time: [1.0; TIME_PARTS],
            time_covariance: covariance,
            memory: 1.0,
            memory_variance: memory_deviation.powi(2),
        }
    }

    /// Takes what a trial of `prediction` measured: tokens a second and bytes.
    pub fn learn(&mut self, prediction: &Prediction, tokens_per_s: Option<f64>, peak_bytes: Option<f64>) {
        let positive = |value: &f64| *value > 0.0 && value.is_finite();
        if let Some(measured) = tokens_per_s.filter(positive) {
            self.learn_time(&shares(prediction), prediction.tokens_per_s() / measured);
        }
        if let Some(measured) = peak_bytes.filter(positive) {
            let ratio = measured / prediction.peak_bytes().max(1) as f64;
            let gain = self.memory_variance / (self.memory_variance + MEMORY_NOISE.powi(2));
            self.memory += gain * (ratio - self.memory);
            self.memory_variance *= 1.0 - gain;
        }
    }

    fn learn_time(&mut self, x: &[f64; TIME_PARTS], y: f64) {
        let px: [f64; TIME_PARTS] = self.time_covariance.map(|row| dot(&row, x));
        let variance = dot(x, &px) + TIME_NOISE.powi(2);
        let surprise = y - dot(x, &self.time);
        for (index, row) in self.time_covariance.iter_mut().enumerate() {
            self.time[index] += px[index] / variance * surprise;
            for (entry, other) in row.iter_mut().zip(px) {
                *entry -= px[index] * other / variance;
            }
        }
    }

    /// Tokens a second of a prediction, corrected.
    pub fn tokens_per_s(&self, prediction: &Prediction) -> Uncertain {
        let x = shares(prediction);
        let variance = dot(&x, &self.time_covariance.map(|row| dot(&row, &x))) + TIME_NOISE.powi(2);
        Uncertain {
            // A factor near zero would come from trials that have nothing to do with the prediction.
            value: prediction.tokens_per_s() / dot(&x, &self.time).max(0.05),
            deviation: variance.sqrt(),
        }
    }

    /// Peak bytes of a prediction, corrected.
    pub fn peak_bytes(&self, prediction: &Prediction) -> Uncertain {
        Uncertain {
            value: prediction.peak_bytes() as f64 * self.memory,
            deviation: (self.memory_variance + MEMORY_NOISE.powi(2)).sqrt(),
        }
    }
}

fn shares(prediction: &Prediction) -> [f64; TIME_PARTS] {
    let total = prediction.seconds.total().max(f64::MIN_POSITIVE);
    prediction.seconds.parts().map(|part| part / total)
}

fn dot(a: &[f64; TIME_PARTS], b: &[f64; TIME_PARTS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::{Bytes, MemoryCategory, Seconds};

    fn prediction(products: f64, passes: f64) -> Prediction {
        let mut bytes = Bytes::default();
        bytes.add(MemoryCategory::BaseWeights, 1000);
        Prediction {
            bytes,
            seconds: Seconds {
                products,
                passes,
                ..Seconds::default()
            },
            link_s: 0.0,
            tokens: 100.0,
            host_bytes: 0,
            serve_s: None,
        }
    }

    /// Checks on a machine whose passes take twice the predicted time that two trials of different shares tell so.
    #[test]
    fn factors_of_parts_are_told_apart_and_uncertainty_shrinks() {
        let mut correction = Correction::new(0.2, 0.02);
        let truth = |one: &Prediction| 100.0 / (one.seconds.products + 2.0 * one.seconds.passes);
        let wanted = prediction(1.0, 1.0);
        let before = correction.tokens_per_s(&wanted);
        for trial in [
            prediction(9.0, 1.0),
            prediction(1.0, 4.0),
            prediction(5.0, 1.0),
            prediction(2.0, 6.0),
        ] {
            correction.learn(&trial, Some(truth(&trial)), Some(1010.0));
        }
        let after = correction.tokens_per_s(&wanted);
        assert!((after.value / truth(&wanted) - 1.0).abs() < 0.05, "{after:?}");
        assert!(after.deviation < 0.5 * before.deviation, "{before:?} {after:?}");
        let memory = correction.peak_bytes(&wanted);
        assert!((memory.value - 1010.0).abs() < 1.0 && memory.deviation < 0.01);
    }

    #[test]
    fn values_that_mean_nothing_teach_nothing() {
        let mut correction = Correction::new(0.2, 0.02);
        correction.learn(&prediction(1.0, 1.0), Some(0.0), Some(f64::NAN));
        assert_eq!(correction, Correction::new(0.2, 0.02));
    }
}
