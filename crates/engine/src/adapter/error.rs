//! What can be wrong with adapter settings or with a PEFT directory.

use std::path::PathBuf;

/// An adapter that cannot be planned, read or written.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error("`target_modules` names `{name}`, which no linear layer ends in; the model has: {known}")]
    UnknownTarget { name: String, known: String },
    #[error("`target_modules` selects no linear layer; name some of: {known}, or `all-linear`")]
    NoTarget { known: String },
    #[error("`modules_to_save` names `{name}`, which no module ends in; the model has: {known}")]
    UnknownModule { name: String, known: String },
    #[error("`modules_to_save` names `{name}`, which already gets an adapter; take it out of one of the two lists")]
    SavedTarget { name: String },
    #[error("`layers_to_transform` has {layer}, but the model has {layers} decoder layers (0 to {last}); lower it",
        last = layers.saturating_sub(1))]
    UnknownLayer { layer: usize, layers: usize },
    #[error("`lora_bias` cannot be combined with `{other}` (PEFT refuses to load it); leave one of them out")]
    BiasWith { other: &'static str },
    #[error("rank 0 for `{name}`; set `rank` (or its entry in `rank_pattern`) to 1 or more")]
    ZeroRank { name: String },
    #[error("rank {rank} is above the smaller dimension of `{name}` ({outputs} x {inputs}); lower `rank` to {most} \
             or less, or give this layer its own in `rank_pattern`", most = inputs.min(outputs))]
    RankAboveDimension {
        name: String,
        rank: usize,
        inputs: usize,
        outputs: usize,
    },
    #[error("alpha {alpha} for `{name}` is not a finite number; correct `alpha` or `alpha_pattern`")]
    BadAlpha { name: String, alpha: f64 },
    #[error("key `{key}` of `{setting}` is not a pattern ({reason}); write the end of a module name, such as `q_proj`")]
    BadPattern {
        setting: &'static str,
        key: String,
        reason: String,
    },
    #[error("key `{key}` of `{setting}` matches no module that gets an adapter; those are: {known}")]
    UnusedPattern {
        setting: &'static str,
        key: String,
        known: String,
    },
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
