//! A trial: its params and how it ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Metrics, Params, SpikeCause};

/// Number of a trial within its study, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TrialNumber(pub u64);

/// Numbers from the last one downwards that no trial has: what runs under them is tried out and not stored.
const REHEARSALS: u64 = 1 << 16;

impl TrialNumber {
    /// The number under which worker `index` rehearses a study.
    pub fn rehearsal(index: usize) -> Self {
        Self(u64::MAX - (index as u64).min(REHEARSALS))
    }

    /// Whether it is the number of a rehearsal, which no trial has.
    pub fn is_rehearsal(self) -> bool {
        self.0 >= u64::MAX - REHEARSALS
    }
}

impl TryFrom<i64> for TrialNumber {
    type Error = std::num::TryFromIntError;

    fn try_from(number: i64) -> Result<Self, Self::Error> {
        number.try_into().map(Self)
    }
}

impl std::fmt::Display for TrialNumber {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// One evaluation of params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    pub number: TrialNumber,
    pub params: Params,
    pub state: TrialState,
}

/// How a trial ended, or that it has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum TrialState {
    Waiting,
    Running,
    Complete {
        metrics: Metrics,
    },
    /// Trial that was stopped early: by which rule, after which step, with what was known by then.
    Pruned {
        at_step: u64,
        rule: String,
        metrics: Metrics,
    },
    Failed {
        reason: FailReason,
        metrics: Metrics,
    },
    /// Trial that never ran, because it was predicted not to fit.
    Skipped {
        reason: String,
    },
}

impl TrialState {
    /// Name of the state as the database holds it.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Whether nothing more will happen to the trial.
    pub fn is_finished(&self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }

    /// Metrics of states that measured something.
    pub fn metrics(&self) -> Option<&Metrics> {
        match self {
            Self::Complete { metrics } | Self::Pruned { metrics, .. } | Self::Failed { metrics, .. } => Some(metrics),
            Self::Waiting | Self::Running | Self::Skipped { .. } => None,
        }
    }

    /// Metrics of states that measured something, to add to them.
    pub fn metrics_mut(&mut self) -> Option<&mut Metrics> {
        match self {
            Self::Complete { metrics } | Self::Pruned { metrics, .. } | Self::Failed { metrics, .. } => Some(metrics),
            Self::Waiting | Self::Running | Self::Skipped { .. } => None,
        }
    }
}

/// Why a trial failed. Running out of memory and diverging are results of a setting, not errors of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum FailReason {
    OutOfMemory {
        phase: Phase,
        /// Bytes in use when the request failed.
        in_use_bytes: Option<u64>,
        /// Bytes that were asked for.
        requested_bytes: Option<u64>,
        limit_bytes: Option<u64>,
    },
    /// The training loss stopped being a finite number, or exploded.
    Diverged {
        at_step: u64,
        /// The last finite loss, if there was one.
        loss: Option<f64>,
        /// Cause, where the numbers of the steps tell one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<SpikeCause>,
    },
    /// The trial process died or reported an error.
    Crashed {
        phase: Phase,
        message: String,
    },
    TimedOut {
        phase: Phase,
        after_s: f64,
    },
    /// The settings cannot be run at all (rank above a dimension, unknown module, ...).
    Invalid {
        message: String,
    },
}

impl FailReason {
    /// Name of the outcome as the database holds it.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Cause of a divergence, to stand behind its step (`, cause: rate`); empty where none is known.
    pub fn cause_text(&self) -> String {
        match self {
            Self::Diverged { cause: Some(cause), .. } => format!(", cause: {}", cause.name()),
            _ => String::new(),
        }
    }

    /// Message about the reason; its name where nothing was said.
    pub fn message(&self) -> &str {
        match self {
            Self::Crashed { message, .. } | Self::Invalid { message } => message,
            Self::OutOfMemory { .. } | Self::Diverged { .. } | Self::TimedOut { .. } => self.name(),
        }
    }
}

/// Part of a trial's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    /// Reading the base model and the data.
    #[default]
    Load,
    /// Measuring throughput and memory.
    Profile,
    Train,
    Evaluate,
}

impl Phase {
    /// Name of the phase as the database holds it.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}
