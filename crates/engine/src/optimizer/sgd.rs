//! Stochastic gradient descent, as in `torch.optim.SGD`.
//!
//! g = g + d p;  b = mu b + g;  p = p - lr b, or with Nesterov's form p = p - lr (g + mu b). Without momentum there is
//! no state and p = p - lr g.

use candle_core::{Result, Tensor};

use peft_tune_core::recipe::OptimizerSettings;

use super::cuda::GroupFactors;
use super::group::Group;
use super::rule::{ElementRule, Step};

/// SGD without momentum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgd;

/// SGD with momentum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Momentum {
    momentum: f64,
    nesterov: bool,
}

/// The factors of one update of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct SgdFactors {
    rate: f32,
    weight_decay: f32,
    momentum: f32,
    nesterov: bool,
}

impl SgdFactors {
    fn for_kernel(&self) -> GroupFactors {
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        [
            self.rate,
            self.weight_decay,
            self.momentum,
            nesterov,
            0.0,
            0.0,
            0.0,
            0.0,
        ]
    }
}

impl Momentum {
    pub(super) fn new(settings: &OptimizerSettings) -> Self {
        Self {
            momentum: settings.momentum,
            nesterov: settings.nesterov,
        }
    }
}

impl ElementRule<0> for Sgd {
    type Factors = SgdFactors;

    const STATES: [&'static str; 0] = [];
    const SIGNED: [bool; 0] = [];

    const KERNEL: &'static str = "sgd";

    fn factors(&self, group: &Group, step: Step) -> SgdFactors {
        let momentum = Momentum {
            momentum: 0.0,
            nesterov: false,
        };
        momentum.factors(group, step)
    }

    fn for_kernel(factors: &SgdFactors) -> GroupFactors {
        factors.for_kernel()
    }

    #[inline(always)]
    fn apply(factors: &SgdFactors, value: &mut f32, gradient: f32, states: [f32; 0]) -> [f32; 0] {
        *value -= factors.rate * (gradient + factors.weight_decay * *value);
        states
    }

    fn apply_plain(
        factors: &SgdFactors,
        value: &Tensor,
        gradient: &Tensor,
        _states: &[Tensor; 0],
    ) -> Result<(Tensor, [Tensor; 0])> {
        let change = (gradient + (value * f64::from(factors.weight_decay))?)?;
        Ok(((value - (change * f64::from(factors.rate))?)?, []))
    }
}

impl ElementRule<1> for Momentum {
    type Factors = SgdFactors;

    const STATES: [&'static str; 1] = ["momentum"];
    const SIGNED: [bool; 1] = [true];

    const KERNEL: &'static str = "momentum";

    fn factors(&self, group: &Group, step: Step) -> SgdFactors {
        SgdFactors {
            rate: step.rate(group) as f32,
            weight_decay: group.weight_decay as f32,
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
        }
    }

    fn for_kernel(factors: &SgdFactors) -> GroupFactors {
        factors.for_kernel()
    }

    #[inline(always)]
    fn apply(factors: &SgdFactors, value: &mut f32, gradient: f32, [buffer]: [f32; 1]) -> [f32; 1] {
        let gradient = gradient + factors.weight_decay * *value;
        let buffer = factors.momentum * buffer + gradient;
        let ahead = gradient + factors.momentum * buffer;
        *value -= factors.rate * if factors.nesterov { ahead } else { buffer };
        [buffer]
    }

    fn apply_plain(
        factors: &SgdFactors,
        value: &Tensor,
        gradient: &Tensor,
        [buffer]: &[Tensor; 1],
    ) -> Result<(Tensor, [Tensor; 1])> {
        let momentum = f64::from(factors.momentum);
        let gradient = (gradient + (value * f64::from(factors.weight_decay))?)?;
        let buffer = ((buffer * momentum)? + &gradient)?;
        let change = if factors.nesterov {
            (gradient + (&buffer * momentum)?)?
        } else {
            buffer.clone()
        };
        Ok(((value - (change * f64::from(factors.rate))?)?, [buffer]))
    }
}
