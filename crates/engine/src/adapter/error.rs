//! Errors in adapter settings or in a PEFT directory.

use std::path::PathBuf;

use peft_tune_core::plan::PlanError;

/// An adapter that cannot be planned, read or written.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(
        "cannot read {path}: {source}; a PEFT adapter is a directory with `adapter_config.json` and \
             `adapter_model.safetensors`"
    )]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a PEFT adapter configuration: {source}")]
    Config { path: PathBuf, source: serde_json::Error },
    #[error("key `{key}` in {path} is `{value}`, which is not supported; expected {expected}")]
    Unsupported {
        path: PathBuf,
        key: String,
        value: String,
        expected: &'static str,
    },
    #[error("{path} is not a valid safetensors file: {source}; it may be cut short: copy it again")]
    Tensors {
        path: PathBuf,
        source: safetensors::SafeTensorError,
    },
    #[error("tensor `{name}` in {path} has dtype {dtype}; expected F32, BF16, F16 or F64")]
    Dtype { path: PathBuf, name: String, dtype: String },
    #[error("tensor `{name}` in {path} holds a value that is not finite; the adapter is damaged or has diverged")]
    NotFinite { path: PathBuf, name: String },
    #[error("tensor `{name}` in {path} has shape {got:?}; this model and rank need {expected:?}")]
    Shape {
        path: PathBuf,
        name: String,
        got: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error("tensor `{name}` is missing in {path}; the adapter belongs to other settings or another model")]
    MissingTensor { path: PathBuf, name: String },
    #[error(
        "tensor `{name}` in {path} does not belong in this model; the adapter belongs to other settings or another model"
    )]
    ExtraTensor { path: PathBuf, name: String },
    #[error(
        "`{embedding}` and `{head}` in {path} differ, and key `ensure_weight_tying` in its adapter_config.json is true: the base model \
         has one parameter for both; set the key to false where each was trained for itself"
    )]
    EndsDiffer {
        path: PathBuf,
        embedding: String,
        head: String,
    },
    #[error(
        "alpha 0 for `{name}` leaves nothing of the adapter in {path}, whose scaling is {scaling}; set `alpha` (or its entry in \
         `alpha_pattern`) to another number"
    )]
    NoScaling { path: PathBuf, name: String, scaling: f64 },
    #[error(
        "the adapters `{name}` in {path} differ in shape from expert to expert or from layer to layer, or gate and up do; experts are \
         stacked, which takes one rank for all of them"
    )]
    OddExpert { path: PathBuf, name: String },
    #[error("{path} holds no LoRA tensor; expected names such as `base_model.model.*.lora_A.weight`")]
    NoTensor { path: PathBuf },
    #[error("the weight of `{name}` has shape {got:?}; expected {expected:?}")]
    WeightShape {
        name: String,
        got: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error("the weight of `{name}` has no singular value decomposition: it holds a value that is not finite")]
    NoDecomposition { name: String },
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
