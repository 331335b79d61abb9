//! Lion (arXiv:2302.06675) as in bitsandbytes.
//!
//! p = p (1 - lr d);  p = p - lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g, with sign(0) = 0.

use candle_core::{Result, Tensor};

use peft_tune_core::recipe::OptimizerSettings;

use super::cuda::GroupFactors;
use super::group::Group;
use super::rule::{ElementRule, Step};

/// The constants of Lion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lion {
    beta1: f64,
    beta2: f64,
}

/// The factors of one update of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct LionFactors {
    rate: f32,
    /// 1 - lr d
    keep: f32,
    beta1: f32,
    take1: f32,
    beta2: f32,
    take2: f32,
}

impl Lion {
    pub(super) fn new(settings: &OptimizerSettings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2(),
        }
    }
}

impl ElementRule<1> for Lion {
    type Factors = LionFactors;

    const STATES: [&'static str; 1] = ["mean"];
    const SIGNED: [bool; 1] = [true];

    const KERNEL: &'static str = "lion";

    fn factors(&self, group: &Group, step: Step) -> LionFactors {
        let rate = step.rate(group);
        LionFactors {
            rate: rate as f32,
            keep: (1.0 - rate * group.weight_decay) as f32,
            beta1: self.beta1 as f32,
            take1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            take2: (1.0 - self.beta2) as f32,
        }
    }

    fn for_kernel(factors: &LionFactors) -> GroupFactors {
        let f = factors;
        [f.rate, f.keep, f.beta1, f.take1, f.beta2, f.take2, 0.0, 0.0]
    }

    #[inline(always)]
    fn apply(factors: &LionFactors, value: &mut f32, gradient: f32, [mean]: [f32; 1]) -> [f32; 1] {
        let direction = factors.beta1 * mean + factors.take1 * gradient;
        // `signum` of zero is one.
        let sign = f32::from(direction > 0.0) - f32::from(direction < 0.0);
        *value = *value * factors.keep - factors.rate * sign;
        [factors.beta2 * mean + factors.take2 * gradient]
    }

    fn apply_plain(
        factors: &LionFactors,
        value: &Tensor,
        gradient: &Tensor,
        [mean]: &[Tensor; 1],
    ) -> Result<(Tensor, [Tensor; 1])> {
        let blend = |beta: f32, take: f32| (mean * f64::from(beta))? + (gradient * f64::from(take))?;
        let sign = blend(factors.beta1, factors.take1)?.sign()?;
        let value = ((value * f64::from(factors.keep))? - (sign * f64::from(factors.rate))?)?;
        Ok((value, [blend(factors.beta2, factors.take2)?]))
    }
}
