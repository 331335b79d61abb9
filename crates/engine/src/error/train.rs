//! [`TrainError`], which carries the errors of all subjects.

use std::path::PathBuf;

use super::culprit::Culprit;
use super::{BatchError, CpuOnlyError, MergeError, PromptError, ShardError, SparsityError, TogetherError};
use crate::adapter::AdapterError;
use crate::checkpoint::WeightsError;
use crate::gguf::GgufError;
use crate::parallel::CollectiveError;
use crate::tokenizer::TokenizerError;
use peft_tune_core::architecture::ArchitectureError;
use peft_tune_core::plan::PlanError;
use peft_tune_core::recipe::{BadGroup, BadOptimizerOffload, BadPrecisionSchedule, BadSharding, TorchOnly};
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

    #[error(transparent)]
    Batch(#[from] BatchError),

    #[error(transparent)]
    CpuOnly(#[from] CpuOnlyError),

    #[error(transparent)]
    Sparsity(#[from] SparsityError),

    #[error(transparent)]
    Merge(#[from] MergeError),

    #[error(transparent)]
    Together(#[from] TogetherError),

    #[error(transparent)]
    Shard(#[from] ShardError),

    #[error(transparent)]
    Prompt(#[from] PromptError),

    #[error(transparent)]
    PrecisionSchedule(#[from] BadPrecisionSchedule),

    #[error(transparent)]
    Sharding(#[from] BadSharding),

    #[error(transparent)]
    OptimizerOffload(#[from] BadOptimizerOffload),

    #[error(transparent)]
    TorchOnly(#[from] TorchOnly),

    #[error(transparent)]
    Group(#[from] BadGroup),

    #[error(transparent)]
    Collective(Box<CollectiveError>),

    #[error(
        "cannot read or write {path}: {source}; check that it is there, may be accessed, and that the disk is not full"
    )]
    File { path: PathBuf, source: std::io::Error },

    #[error(transparent)]
    Tokenizer(Box<TokenizerError>),

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

impl From<GgufError> for TrainError {
    fn from(error: GgufError) -> Self {
        WeightsError::from(error).into()
    }
}

impl From<TokenizerError> for TrainError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokenizer(Box::new(error))
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

    /// Whether the device answers nothing more to this process. The driver's documentation calls these errors sticky: the process has
    /// to end before anything can be launched again.
    pub fn lost_device(&self) -> bool {
        Culprit::of(&self.to_string()).is_some()
    }

    /// Whether the device is lost to this process by a kernel. Where the device itself failed, other kernels would fare no better.
    pub fn is_kernel_fault(&self) -> bool {
        Culprit::of(&self.to_string()) == Some(Culprit::Kernel)
    }
}
