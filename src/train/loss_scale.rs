//! Dynamic loss scaling for fp16: gradients too small for its range are multiplied into it.
//!
//! The factor doubles after 2000 steps without overflow and halves at each overflow, whose step is skipped
//! (Micikevicius et al. 2018, arXiv:1710.03740; constants of PyTorch's GradScaler).

use serde::{Deserialize, Serialize};

const START: f32 = 65_536.0;
const GROWTH_STEPS: u32 = 2000;

/// The factor on the loss and the steps since it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LossScale {
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
    pub(super) fn factor(&self) -> f32 {
        self.factor
    }

    /// Takes note of whether a step's gradients were finite, and returns whether to keep the step.
    pub(super) fn keep(&mut self, finite: bool) -> bool {
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
}
