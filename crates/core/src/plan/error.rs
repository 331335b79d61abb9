//! Errors in the settings of an adapter for a model.

use super::storage::BLOCK;
use crate::recipe::{ActivationQuantization, OnlyInTrl, Precision, QuantizationAware, WeightSparsity};

/// Settings that no training can have on this model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Trainer(#[from] OnlyInTrl),
    #[error("the numbers `{name}` of each layer cannot be trained, so that the whole model cannot; train an adapter")]
    NumbersWhole { name: &'static str },

    #[error(
        "full fine-tuning (`adapter: null`) does not train what layers of `{family}` have in place of attention beside linear \
         layers; train an adapter"
    )]
    MixersWhole { family: &'static str },

    #[error("`target_modules` names `{name}`, which no linear layer ends in; the model has: {known}")]
    UnknownTarget { name: String, known: String },
    #[error("`target_modules` selects no linear layer; name some of: {known}, or `all-linear`")]
    NoTarget { known: String },
    #[error(
        "`target_modules` selects no linear layer; name some of: {known}, or `all-linear`. The experts of this model are \
         parameters, which `target_parameters: [experts.gate_up_proj, experts.down_proj]` names"
    )]
    NoTargetBesideExperts { known: String },
    #[error("`modules_to_save` names `{name}`, which no module ends in; the model has: {known}")]
    UnknownModule { name: String, known: String },
    #[error("`modules_to_save` names `{name}`, which already gets an adapter; take it out of one of the two lists")]
    SavedTarget { name: String },
    #[error("`layers_to_transform` has {layer}, but the model has {layers} decoder layers (0 to {last}); lower it",
        last = layers.saturating_sub(1))]
    UnknownLayer { layer: usize, layers: usize },
    #[error("`lora_bias` cannot be combined with `{other}` (PEFT refuses to load it); leave one of them out")]
    BiasWith { other: &'static str },
    #[error(
        "`{setting}` cannot be combined with an adapter on `{name}`, which is a parameter and no linear layer (PEFT refuses it too); \
         leave `{setting}` out, or name attention's modules only in `target_modules`"
    )]
    ParameterWith { name: String, setting: &'static str },
    #[error(
        "`target_modules` names `{given}` without `{missing}`: the experts hold both in one parameter; name both, or neither"
    )]
    HalfOfExperts { given: &'static str, missing: &'static str },
    #[error("`target_parameters` names `{name}`, which no parameter ends in; the model has: {known}")]
    UnknownParameter { name: String, known: String },
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
    #[error("the biases of experts stay frozen; set `bias` to `none` or `lora_only`")]
    ExpertBiases,
    #[error(
        "full fine-tuning (`adapter: null`) does not train experts that checkpoints have in one tensor, as those of `{family}`; train \
         an adapter"
    )]
    StackedWhole { family: &'static str },
    #[error(
        "full fine-tuning (`adapter: null`) cannot train quantized weights; take `precision` fp32, bf16 or fp16, or train \
         an adapter"
    )]
    QuantizedWhole,
    #[error(
        "adapter {number} cannot answer beside others: {what}; measure it by itself (`--adapter`), or leave it out"
    )]
    NotSideBySide { number: usize, what: &'static str },
    #[error(
        "`activation_quantization: {activations}` needs quantized base weights, and `precision` is {precision}; set `precision` to int8, \
         nf4 or nf4_double, or take `activation_quantization` out"
    )]
    ActivationsOfDense {
        activations: ActivationQuantization,
        precision: Precision,
    },
    #[error(
        "full fine-tuning (`adapter: null`) trains the weights that `weight_sparsity: {sparsity}` would leave out; train an adapter, or \
         set `weight_sparsity` to none"
    )]
    SparseWhole { sparsity: WeightSparsity },
    #[error(
        "`weight_sparsity: {sparsity}` keeps values of fp32, bf16 or fp16, and `precision` is {precision}; set `precision` to one of \
         these, or `weight_sparsity` to none"
    )]
    SparseCodes {
        sparsity: WeightSparsity,
        precision: Precision,
    },
    #[error(
        "`init: pissa` takes principal parts out of the weights, which are no longer sparse then; take another `init`, or set \
         `weight_sparsity` (here {sparsity}) to none"
    )]
    SparsePissa { sparsity: WeightSparsity },
    #[error(
        "`weight_sparsity: {sparsity}` keeps two of each four values of a row, and rows of `{tensor}` have {inputs}, no multiple of \
         four; set `weight_sparsity` to none"
    )]
    SparseWidth {
        sparsity: WeightSparsity,
        tensor: String,
        inputs: usize,
    },
    #[error(
        "`weight_sparsity: {sparsity}` measures activations of dense layers with attention one by one, and `{family}` has {what}; set \
         `weight_sparsity` to magnitude_2_4"
    )]
    WandaLayers {
        sparsity: WeightSparsity,
        family: &'static str,
        what: &'static str,
    },
    #[error("`quantization_aware: {aware}` cannot be combined with {with}; {remedy}, or take `quantization_aware` out")]
    AwareWith {
        aware: QuantizationAware,
        with: String,
        remedy: &'static str,
    },
    #[error(
        "`quantization_aware: {aware}` is for models that can be merged into that form, and one with {found} has none; take \
         `quantization_aware` out"
    )]
    AwareModel {
        aware: QuantizationAware,
        found: &'static str,
    },
    #[error(
        "`quantization_aware: nf4` needs projections that begin at a block of {BLOCK} weights, and row {row} of `{module}`, {inputs} wide, \
         does not; set it to int8, or take it out"
    )]
    AwareBlocks {
        module: &'static str,
        row: usize,
        inputs: usize,
    },
}
