//! Weights that cannot be made sparse, and adapters of other sparse weights.

use std::path::PathBuf;

use peft_tune_core::recipe::WeightSparsity;

/// Weights that cannot be made sparse as a recipe or an adapter asks.
#[derive(Debug, thiserror::Error)]
pub enum SparsityError {
    #[error(
        "the recipe says `weight_sparsity: {asked}`, and the base model was loaded with {loaded}; load it as the recipe says"
    )]
    Other {
        asked: WeightSparsity,
        loaded: WeightSparsity,
    },

    #[error(
        "`weight_sparsity: {sparsity}` measures activations on rows of `data.train`, and there are none; add rows, or set \
         `weight_sparsity` to magnitude_2_4"
    )]
    NoCalibrationRows { sparsity: WeightSparsity },

    #[error(
        "activations in front of `{tensor}` are not finite on the first rows of `data.train`; set `precision` to fp32 or bf16, or \
         `weight_sparsity` to magnitude_2_4"
    )]
    BadActivations { tensor: String },

    #[error(
        "there are no norms of activations for `{tensor}`; train the adapter again, or name the model that it belongs to"
    )]
    NoNorms { tensor: String },

    #[error(
        "cannot read {path}: {reason}; it says which weights the adapter was trained on, copy the adapter's folder again"
    )]
    BadFile { path: PathBuf, reason: String },
}
