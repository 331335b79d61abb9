//! Dynamic loss scaling for fp16: gradients too small for its range are multiplied into it.
//!
//! The factor doubles after 2000 steps without overflow and halves at each overflow, whose step is skipped
//! (Micikevicius et al. 2018, arXiv:1710.03740; constants of PyTorch's GradScaler).

use serde::{Deserialize, Serialize};

use peft_tune_core::recipe::Precision;

const START: f32 = 65_536.0;
const GROWTH_STEPS: u32 = 2000;
/// Steps in a row whose gradients may overflow in fp16 before that counts as divergence: by then the loss scale has
/// fallen from 2^16 to below 2^-16.
const MOST_OVERFLOWS: u32 = 33;

/// The factor on the loss and the steps since it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    factor: f32,
    good_steps: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self {
            factor: START,
            good_steps: 0,
        }
    }
}

impl LossScale {
    /// Factor on the loss of the next step.
    pub(crate) fn factor(&self) -> f32 {
        self.factor
    }

    /// Takes note of whether a step's gradients were finite, and returns whether to keep the step.
    pub(crate) fn keep(&mut self, finite: bool) -> bool {
        if !finite {
            self.factor /= 2.0;
            self.good_steps = 0;
            return false;
        }
        self.good_steps += 1;
        if self.good_steps == GROWTH_STEPS {
            self.factor *= 2.0;
            self.good_steps = 0;
        }
        true
    }
}

/// Tells gradients that overflow now and then, which the loss scale answers, from a training that has diverged.
#[derive(Debug)]
pub struct OverflowWatch {
    in_a_row: u32,
    /// Steps in a row from which on it is divergence.
    most: u32,
}

impl OverflowWatch {
    /// A training's in `precision`: in all but fp16 the first overflow is divergence.
    pub fn new(precision: Precision) -> Self {
        let most = if precision == Precision::Fp16 {
            MOST_OVERFLOWS
        } else {
            1
        };
        Self { in_a_row: 0, most }
    }

    /// Takes note of a step's norm of the gradients, and returns whether the training has diverged.
    pub fn has_diverged(&mut self, grad_norm: f64) -> bool {
        self.in_a_row = if grad_norm.is_finite() { 0 } else { self.in_a_row + 1 };
        self.in_a_row >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_halves_and_a_long_calm_doubles() {
        let mut scale = LossScale::default();
        assert!(!scale.keep(false));
        assert_eq!(scale.factor(), START / 2.0);
        assert!((0..GROWTH_STEPS).all(|_| scale.keep(true)));
        assert_eq!(scale.factor(), START);
    }

    #[test]
    fn only_overflow_after_overflow_is_divergence_in_fp16() {
        let mut watch = OverflowWatch::new(Precision::Fp16);
        for _ in 0..3 {
            assert!((1..MOST_OVERFLOWS).all(|_| !watch.has_diverged(f64::INFINITY)));
            assert!(!watch.has_diverged(1.0));
        }
        assert!((1..MOST_OVERFLOWS).all(|_| !watch.has_diverged(f64::NAN)));
        assert!(watch.has_diverged(f64::NAN));
        assert!(OverflowWatch::new(Precision::Bf16).has_diverged(f64::INFINITY));
    }
}
