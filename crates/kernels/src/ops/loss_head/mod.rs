//! Language-model head and cross-entropy in one pass over chunks of tokens, or, where the head is not trained, over groups of the
//! vocabulary: full logits never exist.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `hidden` | (T, H) | last hidden states, already normalised; compute dtype |
//! | `weight` | (V, H) | the head (the embedding table where they are tied), any float dtype |
//! | `targets` | (T,) | token to predict, or [`IGNORE`] |
//! | `z` | (chunk, V) or (n, group) F32 | logits of one chunk of the n target positions, or of one group |
//!
//! z = cap(hidden weight^T), cap(z) = c tanh(z / c) with soft-cap c (gemma2), else z. loss = sum over the targets of
//! log(sum(exp(z))) - z_target. With scale s: dz = s (softmax(z) - onehot(target)) (1 - (z / c)^2 with a soft-cap), made
//! in place in the chunk; d_hidden = dz weight, d_weight += dz^T hidden. Positions without target cost nothing.

mod fused;
mod head;
pub mod reference;
mod settings;
mod softmax;
mod streamed;

#[cfg(test)]
mod tests;

pub use settings::{IGNORE, Output, PlacedTargets, Settings, Sums, Targets, target_positions};

use super::cuda;
use super::element::with_element;
use super::storage::is_fused;
use crate::gpu;
use candle_core::{DType, Result, Tensor};

/// Loss of the stream and, with a gradient scale, the gradient with respect to `hidden`.
pub fn forward<'a>(
    hidden: &Tensor,
    weight: &Tensor,
    targets: impl Into<Targets<'a>>,
    settings: &Settings,
) -> Result<Output> {
    let targets = targets.into();
    settings::check(hidden, weight, targets.values)?;
    run(hidden, weight, targets, settings, None)
}

/// Computes what [`forward`] does, and adds the gradient with respect to the head to `weight_gradient`, (V, H) F32, in
/// place (`+=`). Without a gradient scale it adds nothing.
pub fn forward_with_weight_gradient<'a>(
    hidden: &Tensor,
    weight: &Tensor,
    targets: impl Into<Targets<'a>>,
    settings: &Settings,
    weight_gradient: &Tensor,
) -> Result<Output> {
    let targets = targets.into();
    settings::check(hidden, weight, targets.values)?;
    super::shape::expect(weight_gradient, weight.dims(), "loss_head: weight gradient")?;
    run(hidden, weight, targets, settings, Some(weight_gradient))
}

fn run(
    hidden: &Tensor,
    weight: &Tensor,
    targets: Targets<'_>,
    settings: &Settings,
    weight_gradient: Option<&Tensor>,
) -> Result<Output> {
    let is_plain = weight_gradient.is_some_and(|gradient| gradient.dtype() != DType::F32);
    if gpu::takes(hidden) && gpu::takes(weight) && !is_plain {
        let (hidden, weight) = (hidden.contiguous()?, weight.contiguous()?);
        return cuda::loss_head::forward(&hidden, &weight, targets, settings, weight_gradient);
    }
    if !is_fused(hidden) || !is_fused(weight) || is_plain {
        return reference::forward(hidden, weight, targets.values, settings, weight_gradient);
    }
    let (hidden, weight) = (hidden.contiguous()?, weight.contiguous()?);
    with_element!(hidden.dtype(), T => fused::forward::<T>(&hidden, &weight, targets.values, settings, weight_gradient))
}
