//! Spikes of a training, as they are told: the step, the numbers before it, the rows of its batch, and what made it.

use serde::{Deserialize, Serialize};

use peft_tune_core::study::SpikeCause;

/// Numbers of one step before or at a spike; absent where they are not finite or not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpikeStep {
    pub step: u64,
    /// Training loss before the step's update, in nats.
    pub loss: Option<f64>,
    pub learning_rate: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: Option<f64>,
    /// Root mean square of the step's change of the trained values.
    pub update: Option<f64>,
    /// Root mean square of the trained values after it.
    pub values: Option<f64>,
}

/// A row of the data that a suspected step trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpikeRow {
    pub step: u64,
    /// File and line or row.
    pub location: String,
    pub tokens: usize,
    pub target_tokens: usize,
    /// Mean loss per target token from values that were good, in nats; absent where it is not finite or was not computed.
    pub loss: Option<f64>,
    /// Whether the loss is far above that of other rows.
    pub stands_out: bool,
    /// Beginning of the row; only where it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A return to a checkpoint at a lower learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackOff {
    /// Step whose loss was no good.
    pub at_step: u64,
    /// Steps taken before the checkpoint that the training returned to.
    pub to_step: u64,
    /// Peak of the learning rate from there on.
    pub learning_rate: f64,
}

/// Action that a training took at a spike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpikeAnswer {
    Ended,
    WentOn,
    BackedOff(BackOff),
}

/// A spike of the training loss, or its end as a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpikeReport {
    pub at_step: u64,
    /// Number that was no good, and its value.
    pub what: String,
    pub cause: SpikeCause,
    /// Findings that name the cause.
    pub evidence: Vec<String>,
    /// Changes that would help, the first one first.
    pub help: Vec<String>,
    /// Steps that led there, the last one last.
    pub history: Vec<SpikeStep>,
    /// Rows of the suspected steps, those with the highest losses first.
    pub rows: Vec<SpikeRow>,
    /// Rows of these steps that are not listed.
    pub rows_left_out: usize,
    pub answer: SpikeAnswer,
}
