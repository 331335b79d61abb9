//! Position of a training, as a checkpoint keeps it.

use serde::{Deserialize, Serialize};

use super::loss_scale::LossScale;

/// Position of a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerPosition {
    /// Optimizer steps taken.
    pub step: u64,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
    /// State of the dynamic loss scale; fp16 only.
    pub(super) loss_scale: Option<LossScale>,
}
