//! What is profiled, and how well.

use std::time::Duration;

use super::ceiling::Ceiling;
use super::sample::DeviceSampler;
use crate::data::PreparedData;
use crate::{BaseSource, StepObserver};
use peft_tune_core::recipe::Recipe;

/// How long to measure, and how well.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileSettings {
    /// Seconds after which measuring ends, whatever is known by then.
    pub budget_s: f64,
    /// Relative half width of the throughput's confidence interval that is enough.
    pub interval: f64,
    pub max_warmup_steps: u64,
    /// Steps whose spans are kept for the trace.
    pub trace_steps: usize,
    /// Time from one look at the device to the next.
    pub sample_every: Duration,
    /// Whether spans are taken from steps of their own, so that nothing of the recording is in the steps whose time counts; where
    /// absent, on GPUs, where each span costs the host two events.
    pub spans_apart: Option<bool>,
}

impl Default for ProfileSettings {
    fn default() -> Self {
        Self {
            budget_s: 60.0,
            interval: 0.02,
            max_warmup_steps: 10,
            trace_steps: 3,
            sample_every: Duration::from_millis(200),
            spans_apart: None,
        }
    }
}

/// Model and data that are profiled, loaded.
pub struct ProfileInputs<'a> {
    pub recipe: &'a Recipe,
    pub base: BaseSource,
    pub data: &'a PreparedData,
    /// Bytes in use before the base model was loaded.
    pub program_bytes: u64,
    pub memory_limit_bytes: Option<u64>,
    /// Ceiling of the device, where it is known.
    pub ceiling: Option<Ceiling>,
    pub sampler: Option<Box<dyn DeviceSampler>>,
    /// Writes measured steps down as a training does, so that what this costs is measured too.
    pub log: Option<StepLog>,
}

/// Log that a training writes of its steps.
pub struct StepLog {
    pub observer: Box<dyn StepObserver>,
    /// One step in N is logged.
    pub every: u64,
}
