//! A training of a few steps as its engine told of it, and how far numbers of two of them are apart.

use serde::Serialize;

use peft_tune_core::objective::{LOSS, LOSS_BEFORE, PEAK_MEMORY};
use peft_tune_core::study::Metrics;
use peft_tune_engine::StepEvent;
use peft_tune_engine::profile::median;

/// First steps that pay for allocations and cold caches; what a step takes is told of those behind them.
const WARMUP: usize = 2;

/// A training as its engine told of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::cli) struct Trained {
    pub steps: Vec<StepEvent>,
    /// Mean cross-entropy of a held-out target token before the first step, in nats.
    pub held_out_loss_before: Option<f64>,
    /// Mean cross-entropy of a held-out target token behind the last step, in nats.
    pub held_out_loss: Option<f64>,
    /// Most bytes of the device that the training took, base model included.
    pub peak_memory_bytes: Option<f64>,
    /// Median seconds of a step behind the first ones.
    pub step_s: Option<f64>,
}

impl Trained {
    /// A training of these steps, with what a trial measured of it.
    pub(in crate::cli) fn new(steps: Vec<StepEvent>, metrics: &Metrics) -> Self {
        let warm = if steps.len() > WARMUP { WARMUP } else { 0 };
        Self {
            step_s: median(steps[warm..].iter().map(|step| step.seconds.total)),
            steps,
            held_out_loss_before: metrics.value(LOSS_BEFORE),
            held_out_loss: metrics.value(LOSS),
            peak_memory_bytes: metrics.value(PEAK_MEMORY),
        }
    }
}

/// Difference of two numbers over the first; infinite where one of them is no number and the other is not the same.
pub(in crate::cli) fn relative(ours: f64, theirs: f64) -> f64 {
    let difference = (ours - theirs).abs() / ours.abs();
    match difference.is_finite() {
        _ if ours == theirs => 0.0,
        true => difference,
        false => f64::INFINITY,
    }
}

/// [`relative`] of what engines need not have told: nothing differs where neither has.
pub(in crate::cli) fn relative_of(ours: Option<f64>, theirs: Option<f64>) -> f64 {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => relative(ours, theirs),
        (None, None) => 0.0,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_the_same_do_not_differ_whatever_they_are() {
        assert_eq!(relative(f64::INFINITY, f64::INFINITY), 0.0);
        assert_eq!(relative(0.0, 0.0), 0.0);
        assert!(relative(0.0, 1.0).is_infinite() && relative(1.0, f64::NAN).is_infinite());
        assert_eq!(relative_of(None, None), 0.0);
    }
}
