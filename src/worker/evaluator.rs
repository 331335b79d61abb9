//! The seam between the study loop and whatever runs trials.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FirstAdapter, HeldOutLosses, Pairing};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{FailReason, Metrics, Params, Phase, TrialNumber, TrialPlan, TrialState};
use peft_tune_engine::{Evaluation, StepEvent};
use peft_tune_kernels::{AttentionKernels, Kernels};

/// One trial to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrialRequest {
    pub number: TrialNumber,
    /// Number of the attempt at the trial, from 1.
    #[serde(default = "first")]
    pub attempt: u64,
    pub task: Task,
    /// Device memory above which the trial is out of memory, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Wall time after which the trial is stopped, in seconds.
    pub time_limit_s: Option<f64>,
    /// Form of the ops to compute in; the process's own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Kernels>,
    /// Places of the trial's devices, one each, where it has several and they are not its worker's own to choose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assignments: Vec<DeviceAssignment>,
    /// Comparison of the last evaluation with a rival; where absent, the evaluation is over all rows and tells only
    /// their mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairing: Option<Pairing>,
    /// Adapter before the first step of the training phase, handed from one engine to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_adapter: Option<FirstAdapter>,
}

/// Place of one of a trial's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceAssignment {
    /// Device to compute on.
    pub device: Option<String>,
    /// Threads to compute with.
    pub threads: Option<usize>,
    /// Processors that the process is pinned to; empty for none.
    #[serde(default)]
    pub cpus: Vec<usize>,
}

/// Work of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A recipe on the native engine.
    Recipe { recipe: Box<Recipe>, plan: TrialPlan },
    /// Params that a program of the user's understands.
    Params {
        params: Params,
        seed: u64,
        /// Steps of a whole trial, where they are known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps: Option<u64>,
    },
}

/// Event that an evaluator tells of its trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum TrialEvent {
    /// A phase began.
    Phase { number: TrialNumber, phase: Phase },
    Step {
        number: TrialNumber,
        phase: Phase,
        step: StepEvent,
    },
    Evaluation {
        number: TrialNumber,
        evaluation: Evaluation,
        /// Losses of all rows of the evaluation, where the trial's [`TrialRequest::pairing`] asks for them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rows: Option<HeldOutLosses>,
    },
    /// The profile phase is over, with what it measured.
    Measured { number: TrialNumber, metrics: Metrics },
    /// The training phase begins, with its length in steps.
    Training { number: TrialNumber, steps: u64 },
    /// A program of the user's reported metrics after so many steps.
    Report {
        number: TrialNumber,
        step: u64,
        metrics: Metrics,
    },
    /// The form in which the ops ran, told before the trial's end.
    Kernels {
        number: TrialNumber,
        kernels: Kernels,
        /// The fastest kernels that attention was launched in on a GPU.
        attention: Option<AttentionKernels>,
        /// Whether products of quantized weights took those of adapters along.
        #[serde(default)]
        longer_sums: bool,
        /// The driver's error, where a kernel failed and took the process's context with it: the process ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
    },
    /// The trial ended; nothing more comes from it. `state` is never `Waiting` or `Running`.
    Ended {
        number: TrialNumber,
        state: TrialState,
        wall_s: f64,
    },
    /// The process that ran the trial is gone, for a reason that may not come again; nothing more comes of this attempt.
    Lost {
        number: TrialNumber,
        reason: FailReason,
        wall_s: f64,
    },
}

fn first() -> u64 {
    1
}

impl TrialEvent {
    /// Whether the event's numbers of steps and tokens are such as a database can count to.
    pub fn is_countable(&self) -> bool {
        let counts = match self {
            Self::Step { step, .. } => [step.step, step.tokens, step.target_tokens],
            Self::Evaluation { evaluation, .. } => [evaluation.step, evaluation.tokens, evaluation.target_tokens],
            Self::Training { steps: step, .. } | Self::Report { step, .. } => [*step, 0, 0],
            Self::Phase { .. }
            | Self::Measured { .. }
            | Self::Kernels { .. }
            | Self::Ended { .. }
            | Self::Lost { .. } => [0; 3],
        };
        counts.iter().all(|count| i64::try_from(*count).is_ok())
    }

    /// The trial that the event is about.
    pub fn number(&self) -> TrialNumber {
        match self {
            Self::Phase { number, .. }
            | Self::Step { number, .. }
            | Self::Evaluation { number, .. }
            | Self::Measured { number, .. }
            | Self::Training { number, .. }
            | Self::Report { number, .. }
            | Self::Kernels { number, .. }
            | Self::Ended { number, .. }
            | Self::Lost { number, .. } => *number,
        }
    }
}

/// Runs trials, one or several at a time.
pub trait Evaluator {
    /// Trials that may run side by side.
    fn capacity(&self) -> usize;

    /// Processes that the trials run in: the time of each is that of all its trials.
    fn workers(&self) -> usize {
        self.capacity()
    }

    /// Starts a trial. At most [`Evaluator::capacity`] may be under way.
    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError>;

    /// Waits for the next event; `None` when `timeout` passed without one.
    fn next_event(&mut self, timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError>;

    /// Asks a trial to stop; it still ends with an event.
    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError>;
}

/// The evaluator itself cannot continue (a trial that fails is an event, not an error).
#[derive(Debug, thiserror::Error)]
pub enum EvaluatorError {
    #[error("cannot start the trial process {program}: {source}")]
    Start { program: String, source: std::io::Error },
    #[error(
        "the trial process speaks protocol {found} (peft-tune {version}), this program speaks {expected}: \
         use the same peft-tune on both sides"
    )]
    Protocol { expected: u32, found: u32, version: String },
    #[error("worker {worker} ended {times} times before it was ready to work: {message}")]
    DiesAtStart { worker: usize, times: u32, message: String },
    #[error("this evaluator cannot run {task}")]
    Unsupported { task: &'static str },
    #[error("all {capacity} worker slots are taken")]
    Full { capacity: usize },
}
