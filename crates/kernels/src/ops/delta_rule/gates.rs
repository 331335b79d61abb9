//! Decay and beta of each token and head.

use super::inputs::Inputs;
use crate::ops::storage::small;
use candle_core::Result;

/// Values that decide decay and beta of each head.
pub(super) struct Gates {
    a: Vec<f32>,
    b: Vec<f32>,
    /// exp of the rate.
    rate: Vec<f32>,
    shift: Vec<f32>,
}

/// Decay and beta of one token and head.
#[derive(Clone, Copy)]
pub(super) struct Gate {
    pub alpha: f32,
    pub beta: f32,
    /// d(log alpha) / da
    pub slope: f32,
}

impl Gates {
    /// The values of all tokens and heads.
    pub(super) fn new(inputs: &Inputs<'_>) -> Result<Self> {
        Ok(Self {
            a: small(inputs.a)?,
            b: small(inputs.b)?,
            rate: small(inputs.rate)?.into_iter().map(f32::exp).collect(),
            shift: small(inputs.shift)?,
        })
    }

    /// Decay and beta of a token of the stream and a value head.
    pub(super) fn of(&self, token: usize, head: usize) -> Gate {
        let (place, rate) = (token * self.shift.len() + head, self.rate[head]);
        let x = self.a[place] + self.shift[head];
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        Gate {
            alpha: (-rate * softplus).exp(),
            beta: logistic(self.b[place]),
            slope: -rate * logistic(x),
        }
    }
}

fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
