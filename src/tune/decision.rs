//! Decisions on what a trial runs, given what others have measured.

use super::measurement::{Measurement, Taken};
use crate::worker::Task;
use peft_tune_core::study::{FailReason, TrialNumber};

/// A decision on what is done with a trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// A task is run; the rest is inherited.
    Run { task: Task, taken: Vec<Taken> },
    /// Every metric is known.
    Known { taken: Vec<Taken> },
    /// The settings that decide this part failed in another trial, and would again.
    Fails {
        part: Measurement,
        source: TrialNumber,
        reason: FailReason,
    },
}
