//! Ranges that spans stand for.

use serde::{Deserialize, Serialize};

use peft_tune_core::predict::Module;

/// A phase of the step, a part of the model, or an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Range {
    Phase(StepPhase),
    /// Decoder layer by its index.
    Layer(u16),
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
    /// Whole step: the other phases are parts of it.
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
    /// Name of the phase in tables, traces and the database.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Range {
    /// Name of the range in tables and traces; a layer's is `layer`, without the index.
    pub fn name(self) -> &'static str {
        match self {
            Self::Phase(phase) => phase.name(),
            Self::Layer(_) => "layer",
            Self::Module(module) => module.name(),
            Self::Op(name) => name,
        }
    }
}

impl std::fmt::Display for Range {
    /// Writes [`Range::name`], and the index of a layer.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Layer(index) => write!(formatter, "layer {index}"),
            other => formatter.write_str(other.name()),
        }
    }
}
