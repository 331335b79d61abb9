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
//!
//! # States in 8 bits
//!
//! Codes reach seven decades down, and v is a square: where the gradients of a parameter are less than 1/2500 of its block's
//! largest, v is coded as 0 while m is not, and a gradient of 0 then divides m by e. bitsandbytes does so wherever it takes the
//! nearest code, as on GPUs. In a thousand steps on gradients of which three of four are 0 it moves values by 7,000 times what F32
//! states do (`tests/golden/optimizer/make_8bit.py`). Two bounds hold here, which leave every other v as bitsandbytes has it:
//!
//! 1. A v that was coded as 0 beside an m that was not is the largest one of that code: such a value rather moves less than it would
//!    with F32 states. (m alone is a poor measure of v: its small codes outlast their gradients, as nine tenths of one are rounded to
//!    the same code again.)
//! 2. m^2 <= K v. With a = b1^2 / b2, m is (1 - b1) times the sum over the past steps k of a^(k/2) (b2^(k/2) g_k), and by
//!    Cauchy-Schwarz its square is at most (1 - b1)^2 times the sum of a^k, which is below 1 / (1 - a), times the sum of
//!    b2^k g_k^2, which is v / (1 - b2). Hence K = (1 - b1)^2 / ((1 - b2) (1 - a)), where a < 1. As K = (1 - b1)^2 / (1 - b2) + a K,
//!    what holds before an update holds after it. None is then longer than the longest that exact AdamW can make: 7.3 lr with the
//!    default betas.

use candle_core::{DType, Result, Tensor};

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
    /// 1 / K: least v for an m of 1.
    least_square: f32,
}

impl AdamW {
    pub(super) fn new(settings: &OptimizerSettings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2(),
            epsilon: settings.epsilon,
        }
    }

    /// 1 / K, which is 0 where m is not bounded by v.
    fn least_square(&self) -> f64 {
        let ratio = self.beta1 * self.beta1 / self.beta2;
        if ratio < 1.0 {
            (1.0 - self.beta2) * (1.0 - ratio) / (1.0 - self.beta1).powi(2)
        } else {
            0.0
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
            least_square: self.least_square() as f32,
        }
    }

    fn for_kernel(factors: &AdamFactors) -> GroupFactors {
        let f = factors;
        [
            f.keep,
            f.take1,
            f.beta2,
            f.take2,
            f.rate,
            f.correction,
            f.epsilon,
            f.least_square,
        ]
    }

    #[inline(always)]
    fn restored(factors: &AdamFactors, [mean, square]: [f32; 2], most_of_zero: [f32; 2]) -> [f32; 2] {
        let of_zero = if mean == 0.0 { 0.0 } else { most_of_zero[1] };
        [mean, square.max(of_zero).max(factors.least_square * mean * mean)]
    }

    fn restored_plain(
        factors: &AdamFactors,
        [mean, square]: [Tensor; 2],
        most_of_zero: &[Tensor; 2],
    ) -> Result<[Tensor; 2]> {
        let has_mean = mean.ne(0.0)?.to_dtype(DType::F32)?;
        let of_zero = has_mean.broadcast_mul(&most_of_zero[1])?;
        let of_mean = (mean.sqr()? * f64::from(factors.least_square))?;
        let square = square.maximum(&of_zero)?.maximum(&of_mean)?;
        Ok([mean, square])
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
