//! What can go wrong between a model directory and a finished step.

use std::path::PathBuf;

use super::adapter::AdapterError;
use super::parallel::CollectiveError;
use peft_tune_core::architecture::ArchitectureError;
use peft_tune_core::plan::PlanError;
use peft_tune_kernels::device::DeviceError;
use peft_tune_kernels::quant::QuantError;

/// A checkpoint that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(
        "{directory} holds neither model.safetensors nor model.safetensors.index.json; download the model again, \
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

    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A training that cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Architecture(Box<ArchitectureError>),

    #[error(transparent)]
    Weights(Box<WeightsError>),

    #[error(transparent)]
    Device(#[from] DeviceError),

    #[error(transparent)]
    Adapter(Box<AdapterError>),

    #[error(
        "the {micro_batches} micro-batch(es) of this step hold {tokens} tokens and not one target; raise \
         `sequence_length`, set `loss_on: all`, or check the labels of the data"
    )]
    NoTargets { micro_batches: usize, tokens: usize },

    #[error("token {token} is outside the model's vocabulary of {vocabulary}; the tokenizer belongs to another model")]
    UnknownToken { token: i64, vocabulary: usize },

    #[error(
        "the trained bias of `{module}` cannot be merged, since the layer has no bias of its own; keep the adapter \
         apart, or train without `lora_bias`"
    )]
    NoBiasToMergeInto { module: String },

    #[error(
        "a document of {tokens} tokens is longer than the {max_positions} positions of this model; lower \
         `sequence_length`"
    )]
    TooLong { tokens: usize, max_positions: usize },

    #[error(transparent)]
    Collective(Box<CollectiveError>),

    #[error("the prompt has no tokens; write at least one word")]
    EmptyPrompt,

    #[error("the prompt has {tokens} tokens, but this model has only {max_positions} positions; shorten it")]
    PromptTooLong { tokens: usize, max_positions: usize },

    #[error(
        "cannot read or write {path}: {source}; check that it is there, may be accessed, and that the disk is not full"
    )]
    File { path: PathBuf, source: std::io::Error },

    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

// Design note: the large errors are boxed, so that a `Result` that is nearly always `Ok` stays small.
impl From<ArchitectureError> for TrainError {
    fn from(error: ArchitectureError) -> Self {
        Self::Architecture(Box::new(error))
    }
}

impl From<WeightsError> for TrainError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(Box::new(error))
    }
}

impl From<CollectiveError> for TrainError {
    fn from(error: CollectiveError) -> Self {
        match error {
            CollectiveError::Candle(error) => Self::Candle(error),
            error => Self::Collective(Box::new(error)),
        }
    }
}

impl From<PlanError> for TrainError {
    fn from(error: PlanError) -> Self {
        AdapterError::from(error).into()
    }
}

impl From<AdapterError> for TrainError {
    fn from(error: AdapterError) -> Self {
        Self::Adapter(Box::new(error))
    }
}

impl TrainError {
    /// Whether the device had no memory left: the outcome of a setting, rather than a fault.
    pub fn out_of_memory(&self) -> bool {
        // candle passes the driver's error on as text only; cuBLAS has a name of its own for it.
        const NAMES: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];
        let error = match self {
            Self::Candle(error) => error,
            Self::Weights(error) => match error.as_ref() {
                WeightsError::Candle(error) => error,
                _ => return false,
            },
            _ => return false,
        };
        let text = error.to_string();
        NAMES.iter().any(|name| text.contains(name))
    }

    /// Whether the device answers nothing more to this process: its context is lost.
    pub fn lost_device(&self) -> bool {
        const NAMES: [&str; 5] = [
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUBLAS_STATUS_EXECUTION_FAILED",
        ];
        let text = self.to_string();
        NAMES.iter().any(|name| text.contains(name))
    }
}
