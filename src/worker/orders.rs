//! Orders that the process of rank 0 gives the others.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::TrialRequest;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::TrialNumber;

/// Order to a rank.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    Trial(Box<TrialRequest>),
    /// Stop this trial after the step it is in.
    Stop(TrialNumber),
    /// Take part in a training, and end with it.
    Train(Box<TrainingOrder>),
}

/// A training that another process leads.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TrainingOrder {
    pub(super) recipe: Recipe,
    /// Folder of the training's checkpoints.
    pub(super) output: PathBuf,
}
