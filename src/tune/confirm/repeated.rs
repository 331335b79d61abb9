//! Repeats that were made so far, and what they say.

use std::collections::BTreeMap;

use super::lengths::Lengths;
use peft_tune_core::study::{Confirmations, Metrics, TrialNumber};

/// Repeats that were made so far.
#[derive(Default)]
pub(super) struct Repeated {
    pub(super) runs: BTreeMap<TrialNumber, Vec<Metrics>>,
    pub(super) confirmations: Confirmations,
    /// Trials whose repeat failed in this search, which is told: they are not repeated again, and keep what was measured.
    pub(super) given_up: Vec<TrialNumber>,
    /// Lengths of longer trainings, as far as there is time for any.
    pub(super) lengths: Option<Lengths>,
}
