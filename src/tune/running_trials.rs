//! Trials under way, and what they measure for others.

use std::collections::BTreeMap;

use super::claim::Claim;
use super::running_trial::RunningTrial;
use peft_tune_core::study::TrialNumber;

/// All trials under way.
#[derive(Default)]
pub(super) struct RunningTrials(BTreeMap<TrialNumber, RunningTrial>);

impl RunningTrials {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = TrialNumber> {
        self.0.keys().copied()
    }

    pub(super) fn get(&self, number: TrialNumber) -> Option<&RunningTrial> {
        self.0.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: TrialNumber) -> Option<&mut RunningTrial> {
        self.0.get_mut(&number)
    }

    pub(super) fn insert(&mut self, number: TrialNumber, running: RunningTrial) {
        self.0.insert(number, running);
    }

    pub(super) fn remove(&mut self, number: TrialNumber) -> Option<RunningTrial> {
        self.0.remove(&number)
    }

    /// Whether a trial under way measures one of these parts.
    pub(super) fn measure_any(&self, claims: &[Claim]) -> bool {
        self.0.values().any(|running| running.measures_any(claims))
    }

    /// Seconds that each trial has taken so far.
    pub(super) fn elapsed_s(&self) -> impl Iterator<Item = f64> {
        self.0.values().map(RunningTrial::elapsed_s)
    }
}
