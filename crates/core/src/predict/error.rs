//! Reasons why something cannot be predicted.

use super::Segment;
use crate::plan::PlanError;
use crate::recipe::{
    ActivationQuantization, BadGroup, BadOptimizerOffload, BadPrecisionSchedule, BadSharding, QuantizationAware,
    TorchOnly, WeightSparsity,
};

/// A setting or a machine that no prediction can be made for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    #[error(transparent)]
    Plan(#[from] PlanError),
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
    #[error(
        "`activation_quantization: {activations}` has no kernels on a GPU for the experts of a mixture; set it to none, leave it out \
         of the search space, or name `cpu` as the device"
    )]
    ActivationsOfExperts { activations: ActivationQuantization },
    #[error(
        "`weight_sparsity: {sparsity}` runs on the CPU only so far; set it to none, leave it out of the search space, or name `cpu` as \
         the device"
    )]
    SparsityOnGpu { sparsity: WeightSparsity },
    #[error(
        "`quantization_aware: {aware}` runs on the CPU only so far; set it to none, leave it out of the search space, or name `cpu` as \
         the device"
    )]
    AwareOnGpu { aware: QuantizationAware },
    #[error("`{key}` is 0; set it to 1 or more")]
    Zero { key: &'static str },
    #[error("rows of {tokens} tokens are longer than the {most} positions of the model; lower `sequence_length`")]
    TooLong { tokens: usize, most: usize },
    #[error("a step of this recipe cannot be run on paper: {reason}")]
    Model { reason: String },
    #[error("{segment:?} cannot be run on paper: {reason}")]
    OnPaper { segment: Segment, reason: String },
    #[error("there is no device `{name}` in the table{}; it has: {known}", said(.nearest))]
    UnknownDevice {
        name: String,
        /// The device whose name looks most like it.
        nearest: Option<&'static str>,
        known: String,
    },
}

fn said(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", where `{name}` comes nearest"))
}
