//! Errors in a checkpoint.

use std::path::PathBuf;

use super::PackedError;
use crate::gguf::GgufError;
use peft_tune_core::architecture::ArchitectureError;
use peft_tune_kernels::quant::QuantError;

/// A checkpoint that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(
        "{directory} holds neither model.safetensors nor model.safetensors.index.json nor a .gguf file; download the model again, \
         or save it with `save_pretrained(..., safe_serialization=True)` where it has other weight files"
    )]
    NoCheckpoint { directory: PathBuf },

    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },

    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        source: safetensors::SafeTensorError,
    },

    #[error("{path} is not a whole safetensors file: {source}; download it again")]
    Damaged {
        path: PathBuf,
        source: safetensors::SafeTensorError,
    },

    #[error("{path} is not a valid index of shards: {source}; download it again")]
    Index { path: PathBuf, source: serde_json::Error },

    #[error("the index {path} names the shard `{shard}`, which is not a plain file name; download the index again")]
    ShardName { path: PathBuf, shard: String },

    #[error("the index {index} places tensor `{tensor}` in {shard}, which does not hold it; download both again")]
    MisplacedTensor {
        index: PathBuf,
        tensor: String,
        shard: PathBuf,
    },

    #[error(
        "tensor `{tensor}` is missing in {path} ({missing} missing in all); config.json belongs to another model, \
         or the download is not complete"
    )]
    MissingTensor {
        path: PathBuf,
        tensor: String,
        missing: usize,
    },

    #[error(
        "tensor `{tensor}` in {path} has no place in the architecture that config.json describes ({extra} such in \
         all); check config.json against the published one"
    )]
    ExtraTensor {
        path: PathBuf,
        tensor: String,
        extra: usize,
    },

    #[error(
        "tensor `{tensor}` in {path} has shape {got:?}, but config.json asks for {expected:?}; check config.json \
         against the published one"
    )]
    Shape {
        path: PathBuf,
        tensor: String,
        expected: Vec<usize>,
        got: Vec<usize>,
    },

    #[error("tensor `{tensor}` in {path} is stored as {got}; supported are F32, F16 and BF16")]
    Dtype { path: PathBuf, tensor: String, got: String },

    #[error(
        "tensor `{tensor}` in {path} holds a value that is not finite as {dtype}, at element {element}; take another \
         `precision`, or download the file again"
    )]
    NotFinite {
        path: PathBuf,
        tensor: String,
        dtype: &'static str,
        element: usize,
    },

    #[error("tensor `{tensor}`: {source}")]
    Quantized { tensor: String, source: QuantError },

    #[error("tensor `{tensor}` in {path}: {source}")]
    Packed {
        path: PathBuf,
        tensor: String,
        source: Box<PackedError>,
    },

    #[error(
        "{path} says in `quantization_config` that the weights are quantized by `{method}`; known are {known}: take \
         the model's unquantized weights, or those of a known format"
    )]
    QuantizationMethod {
        path: PathBuf,
        method: String,
        known: String,
    },

    #[error(transparent)]
    Architecture(Box<ArchitectureError>),

    #[error(transparent)]
    Gguf(Box<GgufError>),

    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl From<GgufError> for WeightsError {
    fn from(error: GgufError) -> Self {
        Self::Gguf(Box::new(error))
    }
}

impl From<ArchitectureError> for WeightsError {
    fn from(error: ArchitectureError) -> Self {
        Self::Architecture(Box::new(error))
    }
}
