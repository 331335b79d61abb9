//! Dropout on the inputs of adapters, keyed by where a token stands in the global batch.

use candle_core::{Result, Tensor};

use super::counted;

/// What decides the masks of one micro-batch.
///
/// A mask depends on the training's seed, the step, the adapter and the element's index in the *global* batch: cutting
/// the global batch into other micro-batches, or recomputing a layer, changes no mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DropoutKey {
    /// Probability that an element is dropped, in [0, 1).
    pub probability: f64,
    /// Seed of the training.
    pub seed: u64,
    /// Optimizer steps taken before this one.
    pub step: u64,
    /// Index of the micro-batch's first token in the global batch.
    pub first_token: u64,
}

impl DropoutKey {
    /// Drops elements of x (T, features), the input of adapter number `adapter`. Its own gradient.
    pub(super) fn apply(&self, x: &Tensor, adapter: u64) -> Result<Tensor> {
        let (_, features) = x.dims2()?;
        let seed = mix(mix(self.seed ^ mix(self.step)) ^ adapter);
        counted::dropout::apply_from(x, seed, self.first_token * features as u64, self.probability)
    }
}

/// The finaliser of SplitMix64 (Steele et al. 2014): neighbouring inputs give unrelated outputs.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
