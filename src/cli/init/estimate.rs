//! What a setting needs of the device's memory, roughly.
//!
//! Weights are counted exactly; activations by the sizes of what a layer keeps. The one function here is all that the
//! rest of `init` knows of memory.

use crate::architecture::Architecture;
use crate::recipe::Precision;

/// A setting, as far as its memory depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub precision: Precision,
    pub rank: usize,
    /// Tokens that go through the model at once.
    pub tokens: usize,
    /// Whether only layer inputs are kept.
    pub recompute: bool,
}

/// Bytes that a training of LoRA adapters on all linear layers needs.
pub fn bytes_needed(architecture: &Architecture, setting: Setting) -> u64 {
    let count = architecture.parameter_count();
    let linear = count.linear as f64 * bytes_per_weight(setting.precision);
    // Embedding, head and norms are never quantised.
    let others = (count.embedding + count.lm_head + count.vectors) as f64 * plain_bytes(setting.precision);
    let adapter: usize = architecture
        .linear_modules()
        .iter()
        .map(|module| setting.rank * (module.in_features + module.out_features))
        .sum();
    // Parameters, gradients and two moments, in F32.
    let adapters = (adapter * architecture.layers.len()) as f64 * 16.0;
    let (hidden, inner) = (architecture.hidden_size as f64, architecture.intermediate_size as f64);
    let attention = (architecture.query_size() + 2 * architecture.kv_size()) as f64;
    // Inputs of the two norms and of each product, the attention's output, both halves of the MLP.
    let kept_by_layer = 4.0 * hidden + 2.0 * attention + 3.0 * inner;
    let layers = architecture.layers.len() as f64;
    let kept = if setting.recompute {
        layers * hidden + kept_by_layer
    } else {
        layers * kept_by_layer
    };
    let activations = setting.tokens as f64 * kept * plain_bytes(setting.precision);
    // Logits exist for a chunk of tokens only, in F32, with their gradient.
    let logits = setting.tokens.min(1024) as f64 * architecture.vocabulary as f64 * 8.0;
    (linear + others + adapters + activations + logits) as u64
}

fn bytes_per_weight(precision: Precision) -> f64 {
    match precision {
        Precision::Int8 => 1.0,
        // Four bits and a constant for each block of 64.
        Precision::Nf4 => 0.5 + 4.0 / 64.0,
        Precision::Nf4Double => 0.5 + 1.0 / 64.0,
        plain => plain_bytes(plain),
    }
}

fn plain_bytes(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 4.0,
        _ => 2.0,
    }
}
