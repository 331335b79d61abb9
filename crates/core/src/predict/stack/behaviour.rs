//! How a stack trains: what it keeps, and how fast it is. The rows stand with the tools that they are of.
//!
//! What a setting's own file says goes before the row.

use serde::Serialize;

/// Bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    F32,
    /// BF16 or FP16.
    Half,
}

impl Number {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Half => 2,
        }
    }
}

/// Tensors that are raised to F32 where weights are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Raised {
    Nothing,
    Norms,
    /// Norms, embedding and head (`prepare_model_for_kbit_training`).
    All,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionForm {
    /// All scores of a layer exist at once, in the compute dtype and in F32.
    Eager,
    /// PyTorch's own: flash attention where the device has it, its memory-efficient kernel elsewhere.
    Sdpa,
    Flash,
}

/// How the loss is made of the last hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossForm {
    /// Logits as a whole; beside them F32 logits, their log-softmax and gradients of both.
    Full,
    /// Logits as a whole, and F32 logits that become their own gradient.
    FusedCrossEntropy,
    /// The hidden states go through the head in so many chunks; log-probabilities of all of them are kept.
    Chunked(u64),
    /// Logits as a whole, which become their own gradient.
    InPlace,
    /// Head and loss in one: logits of a few MiB at a time, and the hidden states' gradient is made at once.
    FusedLinear,
    /// Head and loss in one, in chunks whose logits and gradients may take half of the memory that is free at the first of them
    /// (unsloth).
    HalfOfFree,
    /// Head and loss in one: tiles of 4096 tokens and 32,768 words, which the backward pass computes again.
    Tiled,
    /// Logits of pairs as a whole in F32: of the chosen half a copy and its log-softmax, of all of them the log-probabilities of
    /// their tokens (ORPO).
    OddsRatio,
}

/// Part of the forward pass that the backward pass computes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    Nothing,
    /// Each decoder layer from its input.
    Layers,
    /// Each decoder layer from its input, with the inputs in the host's memory.
    LayersOffloaded,
}

/// How a stack's exported file has updates computed on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostUpdates {
    /// No way: the file cannot say so.
    Unsaid,
    /// Updates by DeepSpeed's ZeRO 2, which takes some recipes only ([`deepspeed_refuses`](super::deepspeed_refuses)).
    DeepSpeed,
    /// Updates by an AdamW whose states are pages of the host's memory.
    PagedAdamW,
}

/// Feature that a stack may be unable to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unable {
    /// Mixtures of experts.
    Experts,
    /// Weights of 8 bits.
    Int8,
    /// Weights that are shared out among several devices.
    SharedWeights,
}

/// Something that a stack cannot train, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRefusal {
    pub of: Unable,
    pub what: &'static str,
    /// Advice on what to do.
    pub instead: &'static str,
}

/// Layers that a stack writes itself in place of transformers', and what they hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnLayers {
    /// Types of models that have them; the layers of others are transformers', compiled, and their LoRA is PEFT's.
    pub model_types: &'static [&'static str],
    /// Types of models that are computed in F32 where a device has no BF16, because F16 would overflow.
    pub wide_types: &'static [&'static str],
}

impl OwnLayers {
    /// Whether models of a type have such layers.
    pub(super) fn are_of(&self, model_type: &str) -> bool {
        self.model_types.contains(&model_type)
    }

    /// Whether models of a type are computed in F32 where a device has no BF16.
    pub(super) fn is_wide(&self, model_type: &str) -> bool {
        self.wide_types.contains(&model_type)
    }
}

/// Behaviour of a stack, as far as its needs depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StackBehaviour {
    /// Name in messages.
    pub name: &'static str,
    /// Weights that are not quantized, where the file does not say: as published (16 bits), or in F32.
    pub loads: Number,
    /// Products run under autocast; else in the dtype of their operands.
    pub autocast: bool,
    /// Tensors that are raised to F32 beside quantized weights.
    pub raises: Raised,
    /// Adapters beside weights of 16 bits, and beside quantized ones.
    pub adapters: [Number; 2],
    pub attention: AttentionForm,
    pub loss: LossForm,
    pub recompute: Recompute,
    /// Norms, rotation and MLP activation are one kernel each.
    pub fused: bool,
    /// Whether its key for liger's kernels brings their loss too, which has head and loss in one.
    pub liger_has_loss: bool,
    /// LoRA's products are written by hand: no tensor of the output's size but the output.
    pub fused_lora: bool,
    /// Layers that it writes itself, by types of models; none where all are transformers', whatever their kernels.
    pub own_layers: Option<OwnLayers>,
    /// The model's output, with its logits, lives until the step ends.
    pub holds_logits: bool,
    /// AdamW works on all parameters at once, with temporaries as large as they are.
    pub foreach: bool,
    /// Rows of a micro-batch are padded to the longest of them, rounded up to a multiple of this.
    pub pads_to: u64,
    /// Share of the matrix units' peak that large products reach, beside a device's own factor.
    pub product_share: f64,
    /// Share of the bandwidth that passes over memory reach.
    pub bandwidth_share: f64,
    /// Seconds from one launch to the next, as Python makes them.
    pub launch_s: f64,
    /// Whether DoRA's frozen product is computed again of the dropped input, behind a dropout.
    pub dora_drops_inputs: bool,
    /// Whether an exported file shares weights out (FSDP) where the recipe does.
    pub says_sharding: bool,
    pub host_updates: HostUpdates,
    pub refuses: &'static [StackRefusal],
    /// Reason why its predictions are not proven: what they were compared with, or that they were not; none where they were compared
    /// with measurements of the stack as it is.
    pub unproven: Option<&'static str>,
}

impl StackBehaviour {
    /// A loop over PyTorch's modules with adapters beside them, from which stacks differ in little.
    pub const PLAIN: Self = Self {
        name: "plain",
        loads: Number::Half,
        autocast: false,
        raises: Raised::All,
        adapters: [Number::F32, Number::F32],
        attention: AttentionForm::Sdpa,
        loss: LossForm::Full,
        recompute: Recompute::Nothing,
        fused: false,
        liger_has_loss: false,
        fused_lora: false,
        own_layers: None,
        holds_logits: true,
        foreach: true,
        pads_to: 1,
        product_share: 0.72,
        bandwidth_share: 0.8,
        launch_s: 17e-6,
        dora_drops_inputs: true,
        says_sharding: false,
        host_updates: HostUpdates::Unsaid,
        refuses: &[],
        unproven: None,
    };
}
