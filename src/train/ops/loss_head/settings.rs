//! What the loss head computes and what it returns.

use super::super::shape;
use crate::train::data::IGNORE;
use candle_core::{Result, Tensor};

/// Constants of the loss head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Bound c of the logits, which become c tanh(z / c); `None` for no bound.
    pub soft_cap: Option<f64>,
    /// Target positions whose logits exist at once; at least 1.
    pub chunk_tokens: usize,
    /// Factor on the gradient of the loss sum, usually 1 / target tokens of the global batch; `None` for evaluation only.
    pub gradient_scale: Option<f32>,
}

/// Loss of one micro-batch.
#[derive(Clone, Debug)]
pub struct Output {
    /// Sum of the cross-entropy over the targets, in nats.
    pub loss_sum: f64,
    /// Targets that are the most likely token.
    pub correct: u64,
    /// Positions with a target.
    pub target_tokens: u64,
    /// (T, H) in the dtype of the hidden states, zero where there is no target; `None` without a gradient scale.
    pub d_hidden: Option<Tensor>,
}

/// Fails unless the shapes agree and every target is a token of the vocabulary or ignored.
pub(super) fn check(hidden: &Tensor, weight: &Tensor, targets: &[i64]) -> Result<()> {
    let (_, width) = hidden.dims2()?;
    let (vocabulary, _) = weight.dims2()?;
    shape::expect(weight, &[vocabulary, width], "loss_head: weight")?;
    shape::expect(hidden, &[targets.len(), width], "loss_head: hidden")?;
    let known = |target: i64| target == IGNORE || usize::try_from(target).is_ok_and(|index| index < vocabulary);
    if let Some(position) = targets.iter().position(|target| !known(*target)) {
        let target = targets[position];
        candle_core::bail!(
            "loss_head: target {target} at position {position} is outside the vocabulary of {vocabulary}"
        );
    }
    Ok(())
}

/// Positions that have a target.
pub(in crate::train::ops) fn target_positions(targets: &[i64]) -> Vec<u32> {
    let positions = targets.iter().enumerate().filter(|(_, target)| **target != IGNORE);
    positions.map(|(position, _)| position as u32).collect()
}
