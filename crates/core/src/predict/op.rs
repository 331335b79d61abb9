//! The work of a step as a list of ops: what FLOPs and seconds are computed from.

use serde::{Deserialize, Serialize};

use crate::plan::Form;

/// Part of the model that an op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Module {
    Embedding,
    Norms,
    QueryKeyValue,
    Attention,
    Output,
    GateUp,
    Down,
    /// LM head and cross-entropy.
    Head,
    /// Adapters of all linear layers.
    Adapters,
    Optimizer,
}

/// Modules in the order in which they are shown.
pub const MODULES: [Module; 10] = [
    Module::Embedding,
    Module::Norms,
    Module::QueryKeyValue,
    Module::Attention,
    Module::Output,
    Module::GateUp,
    Module::Down,
    Module::Head,
    Module::Adapters,
    Module::Optimizer,
];

/// When an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Forward,
    /// Forward once more, for activation checkpointing.
    Recompute,
    Backward,
    Optimizer,
}

/// Storage of a product's right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// As the precision stores linear weights.
    Weight,
    /// In the compute dtype: embedding and LM head, activations.
    Dense,
    /// F32: adapters.
    Adapter,
}

/// One matrix product, or a sum of them that is computed in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    pub module: Module,
    pub right: Right,
    pub form: Form,
    pub rows: f64,
    pub columns: f64,
    pub depth: f64,
    /// Depth that an adapter adds to the sum.
    pub adapter_depth: f64,
}

impl Product {
    /// FLOPs of the product alone.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows * self.columns * self.depth
    }

    /// FLOPs of the adapter's part of the sum.
    pub fn adapter_flops(&self) -> f64 {
        2.0 * self.rows * self.columns * self.adapter_depth
    }
}

/// A kind of op that passes over memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    NormForward,
    NormBackward,
    Rope,
    GluForward,
    GluBackward,
    Add,
    Bias,
    Dropout,
    /// Losses and their gradients over logits.
    CrossEntropy,
    /// Rows of the embedding.
    Gather,
    /// A plain copy, or a plain tensor op.
    Copy,
    /// Clearing, norm and clipping of gradients.
    Clip,
    /// The optimizer's update, by its kind: AdamW, Lion, SGD with momentum, Adafactor (one matrix), the 8-bit forms (one
    /// parameter).
    UpdateF32,
    UpdateLion,
    UpdateSgd,
    UpdateAdafactor,
    Update8bit,
    UpdateLion8bit,
    /// Fixed cost of a step: building the batch's tensors, the schedule.
    Step,
}

/// All passes.
pub const PASSES: [Pass; 19] = [
    Pass::NormForward,
    Pass::NormBackward,
    Pass::Rope,
    Pass::GluForward,
    Pass::GluBackward,
    Pass::Add,
    Pass::Bias,
    Pass::Dropout,
    Pass::CrossEntropy,
    Pass::Gather,
    Pass::Copy,
    Pass::Clip,
    Pass::UpdateF32,
    Pass::UpdateLion,
    Pass::UpdateSgd,
    Pass::UpdateAdafactor,
    Pass::Update8bit,
    Pass::UpdateLion8bit,
    Pass::Step,
];

impl Pass {
    /// Name in the table of ceilings.
    pub fn name(self) -> &'static str {
        match self {
            Self::NormForward => "norm_forward",
            Self::NormBackward => "norm_backward",
            Self::Rope => "rope",
            Self::GluForward => "glu_forward",
            Self::GluBackward => "glu_backward",
            Self::Add => "add",
            Self::Bias => "bias",
            Self::Dropout => "dropout",
            Self::CrossEntropy => "cross_entropy",
            Self::Gather => "gather",
            Self::Copy => "copy",
            Self::Clip => "clip",
            Self::UpdateF32 => "update_f32",
            Self::UpdateLion => "update_lion",
            Self::UpdateSgd => "update_sgd",
            Self::UpdateAdafactor => "update_adafactor",
            Self::Update8bit => "update_8bit",
            Self::UpdateLion8bit => "update_lion_8bit",
            Self::Step => "step",
        }
    }

    /// Tensors of the op's size that it reads or writes.
    pub fn tensors(self) -> f64 {
        match self {
            Self::NormForward | Self::Rope | Self::Dropout | Self::Gather | Self::Copy => 2.0,
            Self::NormBackward | Self::GluForward | Self::Add => 3.0,
            Self::GluBackward => 5.0,
            Self::Bias => 2.0,
            Self::CrossEntropy => 4.0,
            Self::Clip => 4.0,
            Self::UpdateF32 => 7.0,
            Self::UpdateLion | Self::UpdateSgd => 5.0,
            Self::UpdateAdafactor | Self::Update8bit => 4.0,
            Self::UpdateLion8bit => 3.5,
            Self::Step => 0.0,
        }
    }
}

/// One op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    Product(Product),
    /// Attention of all heads over the whole stream.
    Attention {
        window: Option<usize>,
        backward: bool,
    },
    Pass {
        module: Module,
        pass: Pass,
        elements: f64,
    },
}

/// An op with when and how often it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op {
    pub stage: Stage,
    pub work: Work,
    pub times: f64,
}
