//! State of a search's confirmation: runs that were made, and those that there was no time for.

use std::collections::BTreeMap;

use crate::space::Study;
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, REPEAT_WALL_S, THROUGHPUT};
use peft_tune_core::recipe::TrainedRows;
use peft_tune_core::study::{Metrics, TrialNumber};

/// Settings that a search may train beyond its budget of trials, for longer trainings.
const MOST_TRIED: u64 = 5;

/// Runs of each kind that were made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunsMade {
    /// Tokens of each longer training.
    pub(super) longer: Vec<u64>,
    pub(super) seeds: u64,
    pub(super) costs: u64,
    /// Seconds of the repeats of costs.
    pub(super) costs_s: f64,
}

impl RunsMade {
    /// Counts the runs of all trials. A command runs as a whole: each repeat of it tells its costs, whatever it calls
    /// them.
    pub(super) fn of(study: &Study, runs: &BTreeMap<TrialNumber, Vec<Metrics>>) -> Self {
        let trains_recipes = study.backend.trains_recipes();
        let mut made = Self::default();
        for run in runs.values().flatten() {
            made.longer.extend(run.value(LONGER_TOKENS).map(|tokens| tokens as u64));
            made.seeds += u64::from(trains_recipes && is_training(run));
            if !trains_recipes || is_cost(run) {
                made.costs += 1;
                made.costs_s += run.value(REPEAT_WALL_S).unwrap_or(0.0);
            }
        }
        made
    }
}

/// What the finalists' longer trainings lack that are missing, or shorter than planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Trainings that there was no time for.
    Time {
        /// Tokens of the longest training that was made; `None` where there was no time for any.
        longest: Option<u64>,
        /// Tokens that the longest trainings would have had, were there time enough.
        planned: u64,
    },
    /// Trainings that a study of so few is not worth.
    Trainings {
        made: u64,
        /// Trainings from which on longer ones are made.
        enough: u64,
        /// Trainings that are enough where a budget of time bounds them; `None` where one does.
        enough_with_time: Option<u64>,
    },
}

/// Runs that confirmed a search's recommendation so far, and what is still to come.
#[derive(Debug)]
pub(super) struct Confirmation {
    /// Rows that a training goes over, where they are known.
    trained: Option<TrainedRows>,
    /// Whether no further trial comes: the recommendation is being confirmed.
    trials_are_over: bool,
    /// Whether this search has confirmed a recommendation, as far as there was time.
    is_done: bool,
    runs_made: RunsMade,
    /// What longer trainings lacked.
    lack: Option<Lack>,
    /// Settings that were trained beyond the budget, to be trained longer.
    tried_for_longer: u64,
}

impl Confirmation {
    /// A confirmation that is still to come, of which earlier searches made `runs_made`.
    pub(super) fn new(trained: Option<TrainedRows>, runs_made: RunsMade) -> Self {
        Self {
            trained,
            trials_are_over: false,
            is_done: false,
            runs_made,
            lack: None,
            tried_for_longer: 0,
        }
    }

    /// Rows that a training goes over, where they are known.
    pub(super) fn trained(&self) -> Option<TrainedRows> {
        self.trained
    }

    /// Whether no further trial comes.
    pub(super) fn trials_are_over(&self) -> bool {
        self.trials_are_over
    }

    /// Notes that no further trial comes.
    pub(super) fn end_trials(&mut self) {
        self.trials_are_over = true;
    }

    /// Notes that trials go on.
    pub(super) fn resume_trials(&mut self) {
        self.trials_are_over = false;
    }

    /// Whether this search has confirmed a recommendation, as far as there was time.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Notes that the recommendation is confirmed but for what longer trainings lack.
    pub(super) fn finish(&mut self, lack: Option<Lack>) {
        self.is_done = true;
        self.lack = lack;
    }

    /// What the finalists' longer trainings lacked; `None` where nothing is missing.
    pub(super) fn lack(&self) -> Option<Lack> {
        self.lack
    }

    /// Runs of each kind that were made.
    pub(super) fn runs_made(&self) -> &RunsMade {
        &self.runs_made
    }

    /// Takes the runs that were made by now, the earlier ones included.
    pub(super) fn count(&mut self, runs_made: RunsMade) {
        self.runs_made = runs_made;
    }

    /// Whether another setting may be trained beyond the budget, to be trained longer.
    pub(super) fn may_try_another(&self) -> bool {
        self.tried_for_longer < MOST_TRIED
    }

    /// Counts a setting that is trained beyond the budget, to be trained longer.
    pub(super) fn try_another(&mut self) {
        self.tried_for_longer += 1;
    }
}

/// Whether a repeat by the engine was a profile phase.
pub(super) fn is_cost(run: &Metrics) -> bool {
    run.value(THROUGHPUT).is_some()
}

/// Whether a repeat by the engine was a training with another seed.
pub(super) fn is_training(run: &Metrics) -> bool {
    run.value(LOSS).is_some() && run.value(THROUGHPUT).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_settings_are_tried_for_longer_trainings_and_no_more() {
        let mut confirmation = Confirmation::new(None, RunsMade::default());
        let tried = std::iter::from_fn(|| confirmation.may_try_another().then(|| confirmation.try_another()));
        assert_eq!(tried.count() as u64, MOST_TRIED);
    }

    #[test]
    fn a_search_that_was_confirmed_may_go_on_with_trials() {
        let mut confirmation = Confirmation::new(None, RunsMade::default());
        confirmation.end_trials();
        let lack = Lack::Time {
            longest: None,
            planned: 7,
        };
        confirmation.finish(Some(lack));
        confirmation.resume_trials();
        assert!(confirmation.is_done() && !confirmation.trials_are_over());
        assert_eq!(confirmation.lack(), Some(lack));
    }
}
