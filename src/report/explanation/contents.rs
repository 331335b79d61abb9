//! Everything that `explain` says of a study, before it is words or JSON.

use crate::report::StudyCosts;
use crate::report::answers::Answers;
use crate::store::{EndingRecord, PredictionRecord, StudyOverview, Variants};
use peft_tune_core::study::{Confirmations, Trial, TrialNumber};
use peft_tune_search::{Effect, Importance, Proposal};

/// Everything that is said about a study.
pub struct Explanation {
    pub study: StudyOverview,
    pub trials: Vec<Trial>,
    pub confirmed: Confirmations,
    pub variants: Variants,
    pub recommendation: Result<(TrialNumber, String), String>,
    /// Gains of the recommended trial against the baseline, in words.
    pub against_baseline: Option<String>,
    pub predictions: Vec<PredictionRecord>,
    /// Costs in money, where the price of the devices is known.
    pub costs: Option<StudyCosts>,
    pub importance: Vec<Importance>,
    /// The most important parameters with their effects on every objective.
    pub effects: Vec<(String, Vec<Effect>)>,
    pub volumes: Vec<f64>,
    pub ending: Option<EndingRecord>,
    /// Why the study may end by the usual rule, where it may.
    pub done: Option<String>,
    pub next: Vec<Proposal>,
    pub answers: Answers,
}
