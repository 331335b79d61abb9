//! A plan for another tool, before it is text or JSON.

use serde::Serialize;

use crate::report::Lengths;
use peft_tune_core::predict::Scaling;
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
    /// Speed on several devices against that on one.
    pub scaling: Option<Scaling>,
    pub limits: Option<Limits>,
    pub frontier: Vec<FrontierPoint>,
    pub levers: Vec<Lever>,
    /// Lengths of the study's rows, where they could be looked at.
    pub lengths: Option<Lengths>,
    pub assumed: Assumed,
    pub notes: Vec<String>,
}

/// Grounds of a verdict that its input need not say, in words.
#[derive(Debug, Serialize)]
pub(super) struct Assumed {
    /// The tool that trains, and what told it.
    pub tool: String,
    /// Tokens of a row, and how far rows are filled.
    pub rows: String,
    /// The devices, and who named them.
    pub device: String,
}

impl Assumed {
    /// Devices of a plan: one kind and their number, which `--devices` says where it is said.
    pub(super) fn devices(device: Option<StackDevice>, count: u64, is_said: bool) -> String {
        let Some(device) = device else {
            return "none, and so no verdict and no speed: --device names one".to_owned();
        };
        let name = device.sheet.name;
        match (count, is_said) {
            (1, false) => format!("one {name}; --devices says how many"),
            (count, _) => format!("{count} x {name}"),
        }
    }
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
