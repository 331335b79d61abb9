//! Dropout on the inputs of adapters, keyed by where a token stands in the global batch.

use candle_core::Result;

use super::traced;
use crate::tensor::Tensor;
use peft_tune_kernels::ops::dropout::{MaskKey, mix};

/// Seeds and rate that decide the masks of one micro-batch.
///
/// A mask depends on the training's seed, the step, the adapter and the element's index in the *global* batch: cutting
/// the global batch into other micro-batches, or recomputing a layer, changes no mask.
#[derive(Clone, Debug)]
pub(crate) struct DropoutKey {
    /// Probability that an element is dropped, in [0, 1).
    probability: f64,
    pub masks: MaskKey,
}

impl DropoutKey {
    /// The masks of the micro-batch that begins at token `first_token` of the global batch of the step behind `step` others, in a
    /// training with `seed`.
    pub(crate) fn new(probability: f64, seed: u64, step: u64, first_token: u64) -> Self {
        Self {
            probability,
            masks: MaskKey::new(mix(seed ^ mix(step)), first_token),
        }
    }

    /// Drops elements of x (T, features), the input of adapter number `adapter`. Its own gradient.
    pub(super) fn apply(&self, x: &Tensor, adapter: u64) -> Result<Tensor> {
        traced::dropout::apply(x, &self.masks, adapter, self.probability)
    }
}
