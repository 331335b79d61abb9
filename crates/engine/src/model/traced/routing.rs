//! The choice of experts.

use candle_core::Result;

use super::{Tensor, pass};
use crate::span::op;
use peft_tune_kernels::ops::offsets::Offsets;
use peft_tune_kernels::ops::routing;
pub(in crate::model) use peft_tune_kernels::ops::routing::{Scores, Settings};

/// The experts of each token; see [`routing::Routing`].
#[derive(Clone, Debug)]
pub(in crate::model) struct Routing {
    pub scores: Tensor,
    pub weights: Tensor,
    pub tokens: Tensor,
    pub rows: Tensor,
    pub offsets: Offsets,
}

/// See [`routing::forward`].
pub(in crate::model) fn forward(
    logits: &Tensor,
    correction: Option<&candle_core::Tensor>,
    settings: &Settings,
) -> Result<Routing> {
    let _span = op("route", || pass(logits, 2));
    let routing::Routing {
        scores,
        weights,
        tokens,
        rows,
        offsets,
    } = routing::forward(logits.real()?, correction, settings)?;
    Ok(Routing {
        scores: scores.into(),
        weights: weights.into(),
        tokens: tokens.into(),
        rows: rows.into(),
        offsets,
    })
}

/// See [`routing::backward`].
pub(in crate::model) fn backward(routing: &Routing, d_weights: &Tensor, settings: &Settings) -> Result<Tensor> {
    let _span = op("route_backward", || pass(&routing.scores, 2));
    let of = routing::Routing {
        scores: routing.scores.real()?.clone(),
        weights: routing.weights.real()?.clone(),
        tokens: routing.tokens.real()?.clone(),
        rows: routing.rows.real()?.clone(),
        offsets: routing.offsets.clone(),
    };
    Ok(routing::backward(&of, d_weights.real()?, settings)?.into())
}
