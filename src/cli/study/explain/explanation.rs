//! Everything that `explain` says of a study, before it is words or JSON.

use crate::report::answers::Answers;
use crate::store::{Confirmations, EndingRecord, PredictionRecord, StudyOverview, Variants};
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Effect, Importance, Proposal};

/// Everything that is said about a study.
pub(super) struct Explanation {
    pub(in crate::cli) study: StudyOverview,
    pub(in crate::cli) trials: Vec<Trial>,
    pub(in crate::cli) confirmed: Confirmations,
    pub(in crate::cli) variants: Variants,
    pub(in crate::cli) recommendation: Result<(TrialNumber, String), String>,
    /// What it wins against the baseline, in words.
    pub(super) against_baseline: Option<String>,
    pub(super) predictions: Vec<PredictionRecord>,
    pub(in crate::cli) importance: Vec<Importance>,
    /// The most important parameters with their effects on every objective.
    pub(super) effects: Vec<(String, Vec<Effect>)>,
    pub(super) volumes: Vec<f64>,
    pub(super) ending: Option<EndingRecord>,
    /// Why the study may end by the usual rule, where it may.
    pub(super) done: Option<String>,
    pub(in crate::cli) next: Vec<Proposal>,
    pub(super) answers: Answers,
}
