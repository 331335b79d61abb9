//! What can go wrong in a training.

use std::path::PathBuf;

use super::adapter::AdapterError;
use super::checkpoint::WeightsError;
use super::parallel::CollectiveError;
use peft_tune_core::architecture::ArchitectureError;
use peft_tune_core::plan::PlanError;
use peft_tune_kernels::device::DeviceError;

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
