//! Values that are handed to the database: one plain struct a table.

use std::path::PathBuf;

use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::study::Phase;

/// A study as a search begins or resumes it.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyRecord {
    pub name: String,
    /// Path of the study file.
    pub space_path: PathBuf,
    /// Text of the study file.
    pub space_text: String,
    /// Settings beside objectives and constraints that decide what a trial means: parameters, model, data, trial
    /// settings. A study whose definition differs is another study. The budget is no part of it, so that it can be
    /// raised; a price is ([`PRICE`](crate::store::PRICE)), and makes no difference.
    pub definition: serde_json::Value,
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
    pub seed: u64,
    /// Name of the sampler; another one may continue with a study.
    pub sampler: String,
    pub model: Option<ModelRecord>,
    pub data_set: Option<DataSetRecord>,
    pub machine: Option<MachineRecord>,
}

/// The machine that runs trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRecord {
    pub host: String,
    pub os: String,
    pub cpu: String,
    pub cpu_cores: u64,
    pub memory_bytes: u64,
    /// Name of the device: `cpu`, or the GPU's.
    pub device: String,
    pub device_memory_bytes: u64,
    /// Version of the GPU's driver; empty for `cpu`.
    pub driver: String,
}

/// The base model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRecord {
    /// Directory or hub id, as the recipe has it.
    pub source: String,
    /// Hash that tells two models of one source apart; may be empty.
    pub fingerprint: String,
    /// Family, such as `qwen2`; may be empty.
    pub architecture: String,
    /// Number of weights.
    pub parameters: Option<u64>,
}

/// The training and held-out data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataSetRecord {
    /// Training file(s), as the recipe has them.
    pub source: String,
    /// Hash that tells two states of one file apart; may be empty.
    pub fingerprint: String,
    pub rows: Option<u64>,
    pub tokens: Option<u64>,
    pub held_out_rows: Option<u64>,
    /// Words on what is learnt of the data.
    pub learnt: Option<String>,
}

/// One optimizer step. Numbers that are not finite are stored as null.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// Phase of the step: [`Phase::Profile`] or [`Phase::Train`].
    pub phase: Phase,
    /// Number within the phase, from 1.
    pub step: u64,
    /// Training loss in nats per target token.
    pub loss: f64,
    pub learning_rate: f64,
    /// Norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Tokens that went through the model, padding not counted.
    pub tokens: u64,
    pub target_tokens: u64,
    pub data_s: f64,
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
    pub total_s: f64,
}

/// One evaluation on the held-out set. Numbers that are not finite are stored as null.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvaluationRecord {
    /// Optimizer steps taken before the evaluation.
    pub step: u64,
    /// Training tokens seen before the evaluation.
    pub tokens: u64,
    /// Held-out loss in nats per target token.
    pub loss: f64,
    /// Share of target tokens predicted right, in [0, 1].
    pub accuracy: f64,
    pub target_tokens: u64,
    pub seconds: f64,
}
