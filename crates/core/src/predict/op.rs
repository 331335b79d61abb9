//! The work of a step as a list of ops: what FLOPs and seconds are computed from.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::IntoEnumIterator;

use crate::recipe::OptimizerKind;

use crate::plan::Form;
use crate::plan::attention::Heads;
use crate::plan::products::Call;

/// Part of the model that an op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Module {
    Embedding,
    #[strum(serialize = "norm")]
    Norms,
    Attention,
    /// Projections q, k and v.
    #[strum(serialize = "qkv")]
    QueryKeyValue,
    /// The attention's output projection.
    #[strum(serialize = "o")]
    Output,
    Mlp,
    /// Projections gate and up.
    GateUp,
    Down,
    /// Scores of the experts, and their choice.
    Router,
    /// LM head and cross-entropy.
    Head,
    /// Ops of the adapters of all linear layers that run apart from their base layers.
    #[strum(serialize = "adapter")]
    Adapters,
    Optimizer,
}

impl Module {
    /// All modules, in the order in which they are shown.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::iter()
    }

    /// Name of the module in tables and traces.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Time of an op in a step.
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
    /// Storage of linear weights in the precision.
    Weight,
    /// Storage in the compute dtype: embedding and LM head, activations.
    Dense,
    /// Storage in F32: adapters.
    Adapter,
}

/// One matrix product, or a sum of them that is computed in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    pub module: Module,
    pub right: Right,
    /// Whether both operands are multiplied as bytes.
    pub in_bytes: bool,
    pub form: Form,
    pub rows: f64,
    pub columns: f64,
    pub depth: f64,
    /// Depth that an adapter adds to the sum.
    pub adapter_depth: f64,
    /// Share of the product in a call that computes several on a GPU.
    pub launches: f64,
    /// Kernels of a call on a GPU: one for each product of a sum, and those that put operands beside each other.
    pub kernels: f64,
    /// Weights of a sum: a GPU widens each by a kernel of its own where they are quantized.
    pub weights: f64,
}

impl Product {
    /// A product by itself, of an operand that is `right`.
    pub fn new(call: &Call, module: Module, right: Right) -> Self {
        Self {
            module,
            right,
            in_bytes: call.in_bytes,
            form: call.form,
            rows: call.rows as f64,
            columns: call.columns as f64,
            depth: call.depth as f64,
            adapter_depth: call.adapter_depth as f64,
            launches: 1.0,
            kernels: 1.0,
            weights: 1.0,
        }
    }

    /// FLOPs of the product alone.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows * self.columns * self.depth
    }

    /// FLOPs of the adapter's part of the sum.
    pub fn adapter_flops(&self) -> f64 {
        2.0 * self.rows * self.columns * self.adapter_depth
    }
}

/// A kind of op that passes over memory; its name stands in the table of ceilings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// Fixed cost of a step: building the batch's tensors, the schedule.
    Step,
    /// The update of an optimizer, the first of those that share a ceiling; see [`Pass::of_update`].
    Update(OptimizerKind),
}

/// All passes but the updates.
const PLAIN: [Pass; 13] = [
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
    Pass::Step,
];

impl Pass {
    /// All passes.
    pub fn all() -> impl Iterator<Item = Self> {
        PLAIN.into_iter().chain(Self::updates().map(Self::Update))
    }

    /// The optimizers whose updates are measured: one for each ceiling.
    pub fn updates() -> impl Iterator<Item = OptimizerKind> {
        let is_first = |kind: &OptimizerKind| Self::of_update(*kind) == Self::Update(*kind);
        OptimizerKind::ALL.into_iter().filter(is_first)
    }

    /// The pass over memory of an optimizer's update.
    pub fn of_update(kind: OptimizerKind) -> Self {
        let shares = |other: &OptimizerKind| other.row().update.ceiling == kind.row().update.ceiling;
        Self::Update(OptimizerKind::ALL.into_iter().find(shares).unwrap_or(kind))
    }

    /// The pass with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|pass| pass.name() == name)
    }

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
            Self::Step => "step",
            Self::Update(kind) => kind.row().update.ceiling,
        }
    }

    /// Bytes that it reads and writes for each of its elements, where an element of the activations has `activation` bytes.
    pub fn bytes(self, activation: f64) -> f64 {
        match self {
            Self::NormForward | Self::Rope | Self::Dropout | Self::Gather | Self::Copy | Self::Bias => 2.0 * activation,
            Self::NormBackward | Self::GluForward | Self::Add => 3.0 * activation,
            Self::GluBackward => 5.0 * activation,
            // In F32 whatever the activations are.
            Self::CrossEntropy | Self::Clip => 16.0,
            Self::Step => 0.0,
            Self::Update(kind) => kind.row().update.bytes,
        }
    }
}

impl Serialize for Pass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Pass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_name(&name).ok_or_else(|| D::Error::custom(format!("unknown pass `{name}`")))
    }
}

/// One op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    Product(Product),
    /// Attention of all heads over the whole stream.
    Attention {
        heads: Heads,
        window: Option<usize>,
        chunk: Option<usize>,
        backward: bool,
    },
    /// A gated delta rule over the whole stream, with so many values of all heads' states.
    DeltaRule {
        state: usize,
        backward: bool,
    },
    Pass {
        pass: Pass,
        elements: f64,
    },
}

/// Limits of ops: kinds whose ceilings are apart.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, strum::EnumIter, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OpKind {
    /// Products with base weights, embedding and head.
    Products,
    /// Thin products of adapters, and gradients of trained weights.
    Adapters,
    /// Attention and delta rules.
    Attention,
    /// Passes over memory, the update included.
    Passes,
}

impl OpKind {
    /// All kinds, in the order in which they are shown.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::iter()
    }

    /// Name of the kind in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Work {
    /// Kind of the op, by what limits it.
    pub fn kind(&self) -> OpKind {
        match self {
            Self::Product(product) if product.right == Right::Adapter || product.form == Form::Tn => OpKind::Adapters,
            Self::Product(_) => OpKind::Products,
            Self::Attention { .. } | Self::DeltaRule { .. } => OpKind::Attention,
            Self::Pass { .. } => OpKind::Passes,
        }
    }
}

/// FLOPs of a gated delta rule for each value of a state and each token: three products forward; backward seven, and two of the forward
/// pass twice, which make states again.
pub fn delta_rule_flops(backward: bool) -> f64 {
    if backward { 22.0 } else { 6.0 }
}

/// An op with when and how often it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op {
    pub stage: Stage,
    pub work: Work,
    pub times: f64,
}
