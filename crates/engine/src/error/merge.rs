//! Adapters that cannot be merged into their models.

use peft_tune_core::recipe::Precision;

/// A merged model that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error(
        "the trained bias of `{module}` cannot be merged, since the layer has no bias of its own; keep the adapter \
         apart, or train without `lora_bias`"
    )]
    NoBias { module: String },

    #[error(
        "a model with {found} has no form with {kind} weights that other programs load as it is; merge without `--quantize`, and \
         quantize with their own tools"
    )]
    NoQuantizedForm { kind: Precision, found: &'static str },
}
