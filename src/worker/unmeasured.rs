//! Measurements of a trained model that could not be made.

use super::interruption::{Interruption, failure};
use peft_tune_core::study::{Phase, with_causes};
use peft_tune_engine::TrainError;

/// Reason why something could not be measured.
pub(super) enum Unmeasured {
    /// The trial ends, whether or not somebody asks for the metric.
    Ends(Interruption),
    /// The trial goes without, unless somebody asks for the metric.
    Missing(String),
}

impl Unmeasured {
    /// The reason that an error of the engine gives for a missing measurement of this name.
    pub(super) fn of(what: &str, error: TrainError) -> Self {
        match error.lost_device() {
            true => Self::Ends(failure(error, Phase::Evaluate)),
            false => Self::Missing(format!("{what}: {}", with_causes(&error))),
        }
    }
}
