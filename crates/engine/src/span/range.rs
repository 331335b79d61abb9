//! What a span stands for.

use serde::{Deserialize, Serialize};

/// A phase of the step, a module of the model, or an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Range {
    Phase(StepPhase),
    Module(Module),
    /// An op by its name.
    Op(&'static str),
}

/// Part of a step, or what happens beside the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum StepPhase {
    /// One whole step: the phases below are parts of it.
    Step,
    /// Waiting for the batch.
    Data,
    /// Putting the batch on the device.
    HostToDevice,
    Forward,
    Backward,
    /// Running a layer forward again, within the backward pass.
    Recompute,
    /// Clipping and parameter update.
    Optimizer,
    /// Writing the step down: event file, progress.
    Logging,
    /// Loss on the held-out set.
    Evaluation,
    /// Preparing the next batches, on a thread of its own.
    Prepare,
}

impl StepPhase {
    /// Its name in tables, traces and the database.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Module {
    Embedding,
    /// Decoder layer by its index.
    Layer(u16),
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
    Norm,
    /// What an adapter computes apart from its base layer.
    Adapter,
    /// LM head and loss.
    Head,
}

impl Module {
    /// Its name in tables and traces; a layer's is `layer`, without the index.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Range {
    /// Its name in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Phase(phase) => phase.name(),
            Self::Module(module) => module.name(),
            Self::Op(name) => name,
        }
    }
}

impl std::fmt::Display for Range {
    /// As [`Range::name`], and the index of a layer.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Module(Module::Layer(index)) => write!(formatter, "layer {index}"),
            other => formatter.write_str(other.name()),
        }
    }
}
