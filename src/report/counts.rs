//! How many trials a study has, by how they ended, and how many of them are variants.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::store::Variants;
use peft_tune_core::study::{Trial, TrialState};

/// Trials by how they ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    pub total: usize,
    pub complete: usize,
    pub pruned: usize,
    pub failed: usize,
    pub skipped: usize,
    /// Waiting or running.
    pub unfinished: usize,
    /// Trials that took their loss over from a training, and measured a cost at most: part of all the others.
    pub variants: usize,
    /// Failed trials by their reason.
    pub failures: BTreeMap<&'static str, usize>,
}

impl Counts {
    /// Counts trials.
    pub fn of(trials: &[Trial]) -> Self {
        let mut counts = Self {
            total: trials.len(),
            ..Self::default()
        };
        for trial in trials {
            match &trial.state {
                TrialState::Waiting | TrialState::Running => counts.unfinished += 1,
                TrialState::Complete { .. } => counts.complete += 1,
                TrialState::Pruned { .. } => counts.pruned += 1,
                TrialState::Skipped { .. } => counts.skipped += 1,
                TrialState::Failed { reason, .. } => {
                    counts.failed += 1;
                    *counts.failures.entry(reason.name()).or_default() += 1;
                }
            }
        }
        counts
    }

    /// The counts with those of `variants` that are among `trials`.
    #[must_use]
    pub fn with_variants(mut self, trials: &[Trial], variants: &Variants) -> Self {
        let of = trials.iter().filter(|trial| variants.contains_key(&trial.number));
        self.variants = of.count();
        self
    }

    /// The counts in words: `24 trials: 20 complete, 4 failed (3 out_of_memory, 1 diverged)`; where some are variants,
    /// `73 trials, 63 trainings and 10 variants: 70 complete, 3 pruned`.
    pub fn to_text(&self) -> String {
        let failures: Vec<String> = match self.failures.len() {
            1 => self.failures.keys().map(|reason| (*reason).to_owned()).collect(),
            _ => self
                .failures
                .iter()
                .map(|(reason, count)| format!("{count} {reason}"))
                .collect(),
        };
        let failed = match self.failed {
            0 => String::new(),
            failed => format!("{failed} failed ({})", failures.join(", ")),
        };
        let count = |count: usize, state: &str| match count {
            0 => String::new(),
            count => format!("{count} {state}"),
        };
        let parts = [
            count(self.complete, "complete"),
            count(self.pruned, "pruned"),
            failed,
            count(self.skipped, "skipped"),
            count(self.unfinished, "unfinished"),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        match (self.total, parts.join(", ")) {
            (0, _) => "no trials".to_owned(),
            (1, parts) => format!("1 trial: {parts}"),
            (total, parts) => format!("{total} trials{}: {parts}", self.kinds_text()),
        }
    }
}

impl Counts {
    fn kinds_text(&self) -> String {
        let many = |count: usize, name: &str| match count {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        let trainings = many(self.total - self.variants.min(self.total), "training");
        match self.variants {
            0 => String::new(),
            variants => format!(", {trainings} and {}", many(variants, "variant")),
        }
    }
}
