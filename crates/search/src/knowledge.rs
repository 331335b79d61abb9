//! [`Knowledge`] from before a study begins.

use std::sync::Arc;

use crate::Prior;
use peft_tune_core::study::Trial;

/// Knowledge from before a study begins, for samplers that can make use of it.
#[derive(Clone, Default)]
pub struct Knowledge {
    /// Predictions of metrics.
    pub prior: Option<Arc<dyn Prior>>,
    /// Trials of earlier studies.
    pub earlier: Vec<Trial>,
}
