//! AdamW (arXiv:1711.05101) as in `torch.optim.AdamW`.
//!
//! | symbol | meaning |
//! |---|---|
//! | p, g | parameter, gradient |
//! | m, v | running means of g and g^2 |
//! | lr, d, e | learning rate, weight decay, epsilon |
//! | t | number of the step, from 1 |
//!
//! p = p (1 - lr d);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//! p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + e)

use candle_core::{Result, Tensor};

use peft_tune_core::recipe::OptimizerSettings;

use super::cuda::GroupFactors;
use super::group::Group;
use super::rule::{ElementRule, Step};

/// The constants of AdamW.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamW {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

/// The factors of one update of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamFactors {
    /// 1 - lr d
    keep: f32,
    /// 1 - b1
    take1: f32,
    beta2: f32,
    /// 1 - b2
    take2: f32,
    /// lr / (1 - b1^t)
    rate: f32,
    /// sqrt(1 - b2^t)
    correction: f32,
    epsilon: f32,
}

impl AdamW {
    pub(super) fn new(settings: &OptimizerSettings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2(),
            epsilon: settings.epsilon,
        }
    }
}

impl ElementRule<2> for AdamW {
    type Factors = AdamFactors;

    const STATES: [&'static str; 2] = ["mean", "square"];
    const SIGNED: [bool; 2] = [true, false];

    const KERNEL: &'static str = "adamw";

    fn factors(&self, group: &Group, step: Step) -> AdamFactors {
        let rate = step.rate(group);
        let t = step.number as f64;
        AdamFactors {
            keep: (1.0 - rate * group.weight_decay) as f32,
            take1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            take2: (1.0 - self.beta2) as f32,
            rate: (rate / (1.0 - self.beta1.powf(t))) as f32,
            correction: (1.0 - self.beta2.powf(t)).sqrt() as f32,
            epsilon: self.epsilon as f32,
        }
    }

    fn for_kernel(factors: &AdamFactors) -> GroupFactors {
        let f = factors;
        [f.keep, f.take1, f.beta2, f.take2, f.rate, f.correction, f.epsilon, 0.0]
    }

    #[inline(always)]
    fn apply(factors: &AdamFactors, value: &mut f32, gradient: f32, [mean, square]: [f32; 2]) -> [f32; 2] {
        // The form of `lerp`: exact where gradient and mean are equal.
        let mean = mean + factors.take1 * (gradient - mean);
        let square = factors.beta2 * square + factors.take2 * gradient * gradient;
        let denominator = square.sqrt() / factors.correction + factors.epsilon;
        *value = *value * factors.keep - factors.rate * (mean / denominator);
        [mean, square]
    }

    fn apply_plain(
        factors: &AdamFactors,
        value: &Tensor,
        gradient: &Tensor,
        [mean, square]: &[Tensor; 2],
    ) -> Result<(Tensor, [Tensor; 2])> {
        let mean = (mean + ((gradient - mean)? * f64::from(factors.take1))?)?;
        let square = (square * f64::from(factors.beta2))?;
        let square = (square + (gradient.sqr()? * f64::from(factors.take2))?)?;
        let root = square.sqrt()?;
        let denominator = root.affine(1.0 / f64::from(factors.correction), f64::from(factors.epsilon))?;
        let change = ((&mean / denominator)? * f64::from(factors.rate))?;
        let value = ((value * f64::from(factors.keep))? - change)?;
        Ok((value, [mean, square]))
    }
}
