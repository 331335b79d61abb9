//! A plan for another tool, before it is text or JSON.

use crate::report::Lengths;
use peft_tune_core::predict::stack::{Lever, Limits, StackDevice, StackPrediction};

/// Plan for a stack, with all that it says.
#[derive(Debug)]
pub(super) struct StackPlan {
    pub stack: &'static str,
    pub model: String,
    pub parameters: u64,
    /// The setting in words, for people; scripts read `setting`.
    pub setting_text: String,
    pub setting: serde_json::Value,
    pub device: Option<StackDevice>,
    pub prediction: StackPrediction,
    pub limits: Option<Limits>,
    pub frontier: Vec<FrontierPoint>,
    pub levers: Vec<Lever>,
    /// Lengths of the study's rows, where they could be looked at.
    pub lengths: Option<Lengths>,
    pub notes: Vec<String>,
}

/// The largest micro-batch at one length, and its speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FrontierPoint {
    pub sequence_length: u64,
    pub micro_batch: u64,
    pub tokens_per_s: Option<f64>,
}

/// Half, once, twice and four times a length, as far as the model has positions.
pub(super) fn lengths_around(length: u64, most: u64) -> impl Iterator<Item = u64> {
    let all = [
        length.div_ceil(2),
        length,
        length.saturating_mul(2),
        length.saturating_mul(4),
    ];
    all.into_iter().filter(move |one| *one <= most.max(length))
}
