//! Observers of a running study: the seam to the progress bar.

use std::collections::BTreeMap;

use super::{KernelFault, Repeat};
use crate::store::{SearchBudget, SpentTime};
use crate::worker::TrialEvent;
use peft_tune_core::space::Widening;
use peft_tune_core::study::{FailReason, Trial, TrialNumber};
use peft_tune_kernels::Kernels;

/// Progress of a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Finished trials of the study, earlier runs included.
    pub finished: u64,
    /// Finished trials that took their loss over from another: variants, which measured a cost at most.
    pub variants: u64,
    /// Trials the budget allows, where it limits them.
    pub budget_trials: Option<u64>,
    /// Seconds of all runs so far, those under way and earlier searches included.
    pub spent: SpentTime,
    /// Seconds the budget allows, where it limits them.
    pub budget_s: Option<f64>,
    /// Best value of each objective among complete trials that keep the constraints.
    pub best: BTreeMap<String, f64>,
    /// Trials that run side by side.
    pub workers: usize,
    /// Whether no further trial comes: the recommendation is being confirmed.
    pub trials_are_over: bool,
    /// Seconds that the runs behind the trials, which confirm the recommendation, are expected to take from here.
    pub end_s: f64,
}

impl Progress {
    /// The budget that the study may spend.
    pub fn budget(&self) -> SearchBudget {
        SearchBudget {
            trials: self.budget_trials,
            seconds: self.budget_s,
            workers: self.workers as u64,
        }
    }

    /// Finished trials that the budget counts: all but variants.
    pub fn counted(&self) -> u64 {
        self.finished.saturating_sub(self.variants)
    }

    /// Seconds until the search ends, if the trials to come cost what the finished ones did and all workers are busy; what follows
    /// the trials runs one after another. Time that the budget limits is never more than what is left of it.
    pub fn left_s(&self) -> Option<f64> {
        let of_budget = self.budget_s.map(|budget| (budget - self.spent.total_s()).max(0.0));
        if self.trials_are_over {
            return Some(of_budget.map_or(self.end_s, |left| left.min(self.end_s)));
        }
        let workers = self.workers.max(1) as f64;
        let by_trials = self.budget_trials.filter(|_| self.counted() > 0).map(|budget| {
            let rest = budget.saturating_sub(self.counted()) as f64;
            rest * self.trial_s() / workers + self.end_s
        });
        let by_time = of_budget.map(|left| {
            let end = self.end_s.min(left);
            (left - end) / workers + end
        });
        [by_trials, by_time].into_iter().flatten().reduce(f64::min)
    }

    /// Whether the budget leaves no room for another trial as long as the finished ones.
    pub fn is_spent(&self) -> bool {
        let of_trials = self.budget_trials.is_some_and(|budget| self.counted() >= budget);
        let of_time = self
            .budget_s
            .is_some_and(|budget| budget - self.spent.total_s() < self.end_s + self.trial_s());
        of_trials || of_time
    }

    fn trial_s(&self) -> f64 {
        self.spent.trials_s / self.counted().max(1) as f64
    }
}

/// A run that confirms the recommendation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirming {
    pub number: TrialNumber,
    pub repeat: Repeat,
    /// Number of the run within the confirmation, from 1, and how many are expected by now: runs end early where values
    /// are known well.
    pub run: u64,
    pub of: u64,
}

/// Watches a study. The defaults watch nothing.
pub trait TuneObserver {
    /// A trial was handed to the evaluator.
    fn trial_started(&mut self, _trial: &Trial, _progress: &Progress) {}

    /// A trial under way told something.
    fn trial_event(&mut self, _event: &TrialEvent) {}

    /// A trial's params are run again, to be sure of them.
    fn confirming(&mut self, _one: &Confirming, _progress: &Progress) {}

    /// A run that was to confirm a trial failed.
    fn repeat_failed(&mut self, _number: TrialNumber, _repeat: Repeat, _reason: &FailReason) {}

    /// Somebody asked that no further trial starts, or that they go on.
    fn paused(&mut self, _is_paused: bool, _progress: &Progress) {}

    /// The profile phase of a disturbed trial is run again, for the so-many-th time in this search.
    fn measuring_again(&mut self, _number: TrialNumber, _repeat: u64) {}

    /// A kernel failed, and all further trials compute in another form.
    fn kernels_changed(&mut self, _fault: &KernelFault, _kernels: Kernels) {}

    /// A range is searched wider from now on.
    fn range_widened(&mut self, _widening: &Widening) {}

    /// A trial ended and is stored.
    fn trial_ended(&mut self, _trial: &Trial, _progress: &Progress) {}
}

/// The observer that watches nothing.
impl TuneObserver for () {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_the_nearer_of_both_budgets() {
        let mut progress = Progress {
            finished: 10,
            budget_trials: Some(40),
            spent: SpentTime {
                trials_s: 20.0,
                ..Default::default()
            },
            budget_s: Some(50.0),
            ..Default::default()
        };
        assert_eq!(progress.left_s(), Some(30.0));
        progress.budget_s = None;
        assert_eq!(progress.left_s(), Some(60.0));
        // The confirmation comes on top of trials that are counted.
        progress.end_s = 12.0;
        assert_eq!(progress.left_s(), Some(72.0));
        progress.trials_are_over = true;
        assert_eq!(progress.left_s(), Some(12.0));
    }

    #[test]
    fn a_budget_of_time_has_the_confirmation_in_it() {
        let mut progress = Progress {
            finished: 10,
            spent: SpentTime {
                trials_s: 20.0,
                measuring_again_s: 2.0,
                confirming_s: 3.0,
                ..Default::default()
            },
            budget_s: Some(50.0),
            end_s: 15.0,
            ..Default::default()
        };
        assert_eq!(progress.left_s(), Some(25.0));
        // Workers share what trials take, and not what follows.
        progress.workers = 2;
        assert_eq!(progress.left_s(), Some(20.0));
        assert!(!progress.is_spent());
        progress.end_s = 24.0;
        assert!(progress.is_spent());
        progress.trials_are_over = true;
        assert_eq!(progress.left_s(), Some(24.0));
        progress.end_s = 40.0;
        assert_eq!(progress.left_s(), Some(25.0));
    }

    #[test]
    fn nothing_is_said_of_the_time_left_before_the_first_trial() {
        assert_eq!(
            Progress {
                budget_trials: Some(4),
                ..Default::default()
            }
            .left_s(),
            None
        );
    }
}
