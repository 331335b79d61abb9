//! Errors of a training.

use std::path::PathBuf;

use super::adapter::AdapterError;
use super::checkpoint::WeightsError;
use super::gguf::GgufError;
use super::parallel::CollectiveError;
use super::tokenizer::TokenizerError;
use peft_tune_core::architecture::ArchitectureError;
use peft_tune_core::plan::PlanError;
use peft_tune_core::recipe::{
    ActivationQuantization, BadGroup, BadOptimizerOffload, BadPrecisionSchedule, BadSharding, Precision,
    QuantizationAware, WeightSparsity,
};
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
        "a model with {found} has no form with {kind} weights that other programs load as it is; merge without `--quantize`, and \
         quantize with their own tools"
    )]
    NoQuantizedForm { kind: Precision, found: &'static str },

    #[error("the experts of `{family}` run on the CPU only so far; name `cpu` as the device, or take another model")]
    ExpertsOnGpu { family: &'static str },

    #[error(
        "the latent attention of `{family}` runs on the CPU only so far; name `cpu` as the device, or take another model"
    )]
    LatentOnGpu { family: &'static str },

    #[error(
        "`activation_quantization: {activations}` has no kernels on a GPU for the experts of `{family}`; name `cpu` as the device, or \
         take it out of the recipe"
    )]
    ActivationsOfExperts {
        activations: ActivationQuantization,
        family: &'static str,
    },

    #[error("`weight_sparsity: {sparsity}` runs on the CPU only so far; name `cpu` as the device, or set it to none")]
    SparsityOnGpu { sparsity: WeightSparsity },

    #[error(
        "the recipe says `weight_sparsity: {asked}`, and the base model was loaded with {loaded}; load it as the recipe says"
    )]
    OtherSparsity {
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
    BadSparsityFile { path: PathBuf, reason: String },

    #[error(
        "`quantization_aware: {aware}` runs on the CPU only so far; name `cpu` as the device, or take it out of the recipe"
    )]
    AwareOnGpu { aware: QuantizationAware },

    #[error(
        "layers of `{family}` have a convolution or a delta rule in place of attention, which run on the CPU only so far; name `cpu` as \
         the device, or take a model that attends in every layer"
    )]
    MixersOnGpu { family: &'static str },

    #[error(
        "a document of {tokens} tokens is longer than the {max_positions} positions of this model; lower \
         `sequence_length`"
    )]
    TooLong { tokens: usize, max_positions: usize },

    #[error(transparent)]
    PrecisionSchedule(#[from] BadPrecisionSchedule),

    #[error(transparent)]
    Sharding(#[from] BadSharding),

    #[error(transparent)]
    OptimizerOffload(#[from] BadOptimizerOffload),

    #[error(transparent)]
    Group(#[from] BadGroup),

    #[error("trainings share the passes over one base model, and these have a base each; load it once for all")]
    OtherBase,

    #[error(
        "layers of `{family}` have {what}, which rows of several trainings do not share so far; train the recipes one after the other"
    )]
    NoGroups { family: &'static str, what: &'static str },

    #[error("`{tensor}` is shared out among devices and cannot be read as a whole; write `sharding: none`")]
    SharedOut { tensor: String },

    #[error(
        "the weights are those of rank {rank} of {ranks}, and this is rank {at} of {of}; load what its own rank has of the model"
    )]
    OtherRank {
        rank: usize,
        ranks: usize,
        at: usize,
        of: usize,
    },

    #[error(transparent)]
    Collective(Box<CollectiveError>),

    #[error("this model has {adapters} adapters side by side: say which one each sequence is answered with")]
    SeveralAdapters { adapters: usize },

    #[error("adapter {number} is asked for, and there are {adapters}, counted from 0, one for each prompt")]
    NoSuchAdapter { number: usize, adapters: usize },

    #[error(
        "a prompt of {prompt_tokens} tokens and {new_tokens} new ones need {needed} positions, and this model has {positions}; \
         shorten the prompt, or lower `--new-tokens`",
        needed = prompt_tokens + new_tokens
    )]
    NoRoomToAnswer {
        prompt_tokens: usize,
        new_tokens: usize,
        positions: usize,
    },

    #[error("the prompt has no tokens; write at least one word")]
    EmptyPrompt,

    #[error("the prompt has {tokens} tokens, but this model has only {max_positions} positions; shorten it")]
    PromptTooLong { tokens: usize, max_positions: usize },

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
        self.culprit().is_some()
    }

    /// Whether the device is lost to this process by a kernel. Where the device itself failed, other kernels would fare no better.
    pub fn is_kernel_fault(&self) -> bool {
        self.culprit() == Some(Culprit::Kernel)
    }

    fn culprit(&self) -> Option<Culprit> {
        let text = self.to_string();
        let of =
            |(culprit, names): &(Culprit, &[&str])| names.iter().any(|name| text.contains(name)).then_some(*culprit);
        STICKY.iter().find_map(of)
    }
}

/// Cause by which a process lost its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Culprit {
    /// A kernel that failed, hung, or touched memory that is not its own.
    Kernel,
    /// Fault of the device: its memory, its links, its bus.
    Device,
}

/// Errors behind which the driver answers nothing more to a process, by their names: candle passes them on as text.
const STICKY: [(Culprit, &[&str]); 2] = [
    (
        Culprit::Kernel,
        &[
            "CUDA_ERROR_ASSERT",
            "CUDA_ERROR_HARDWARE_STACK_ERROR",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            "CUDA_ERROR_INVALID_PC",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUDA_ERROR_TENSOR_MEMORY_LEAK",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUBLAS_STATUS_MAPPING_ERROR",
        ],
    ),
    (
        Culprit::Device,
        &[
            "CUDA_ERROR_CONTAINED",
            "CUDA_ERROR_CONTEXT_IS_DESTROYED",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUDA_ERROR_EXTERNAL_DEVICE",
            "CUDA_ERROR_NO_DEVICE",
            "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            // What the driver says of a device that is no longer on its bus.
            "CUDA_ERROR_UNKNOWN",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_fault_is_told_from_a_devices_and_from_too_little_memory() {
        let of = |text: &str| {
            let error = TrainError::Candle(candle_core::Error::msg(format!("DriverError({text}, \"..\")")));
            (error.lost_device(), error.is_kernel_fault(), error.out_of_memory())
        };
        for name in [
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUBLAS_STATUS_INTERNAL_ERROR",
        ] {
            assert_eq!(of(name), (true, true, false), "{name}");
        }
        for name in [
            "CUDA_ERROR_UNKNOWN",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUDA_ERROR_NO_DEVICE",
        ] {
            assert_eq!(of(name), (true, false, false), "{name}");
        }
        assert_eq!(of("CUDA_ERROR_OUT_OF_MEMORY"), (false, false, true));
        assert_eq!(of("CUDA_ERROR_INVALID_VALUE"), (false, false, false));
        assert_eq!(STICKY.map(|(_, names)| names.len()), [13, 8]);
    }
}
