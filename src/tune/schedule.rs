//! Budget that a study may still spend, and how its time is shared out.
//!
//! `budget.time` is the seconds of all that a study runs, whichever worker runs it: trials, what is measured again with the
//! waits before, and the runs that confirm the recommendation. With B of them, S spent, U that trials under way are expected
//! to take in all, and E that the end is expected to need, a trial begins where it is expected to take at most
//!
//! left = B - S - U - E.
//!
//! E is bounded, so that trials have the larger part; the confirmation is cut down to what is left of B in the end.

use super::clock::Clock;
use super::confirmation::Confirmation;
use super::disturbed::{DisturbedTrials, LEAST_WAIT_S, SHARE_FOR_REPEATS};
use super::known_measurements::KnownMeasurements;
use super::predictions::Predictions;
use super::queue::Queue;
use super::running_trials::RunningTrials;
use super::trials::Trials;
use super::{Ending, Progress};
use crate::space::Study;
use peft_tune_core::study::Params;
use peft_tune_kernels::Kernels;
use peft_tune_search::Problem;

/// Most of a budget of time that trials leave to the runs that confirm the recommendation.
const SHARE_FOR_CONFIRMATION: f64 = 1.0 / 3.0;
/// Most of the time of trials that trainings leave to the variants that are measured behind them.
const SHARE_FOR_VARIANTS: f64 = 0.08;
/// Share of the budget by which runs that confirm may be expected to go beyond it.
const SLACK: f64 = 0.05;

/// The parts of a search that decide what there is time for.
#[derive(Clone, Copy)]
pub(super) struct Schedule<'a> {
    pub(super) study: &'a Study,
    /// Problem with the ranges as wide as they are by now.
    pub(super) problem: &'a Problem,
    pub(super) trials: &'a Trials,
    pub(super) running: &'a RunningTrials,
    pub(super) queue: &'a Queue,
    pub(super) known: &'a KnownMeasurements,
    /// The form of the ops that trials to come run in.
    pub(super) kernels: Kernels,
    /// Predictions of what trials cost, where that is known.
    pub(super) predictions: Option<&'a Predictions>,
    pub(super) clock: &'a Clock,
    pub(super) disturbed: &'a DisturbedTrials,
    pub(super) confirmation: &'a Confirmation,
    pub(super) workers: usize,
}

impl Schedule<'_> {
    /// The progress of the study.
    pub(super) fn progress(&self) -> Progress {
        let (budget, finished_trials) = (&self.study.budget, self.trials.finished_trials());
        let under_way_s: f64 = self.running.elapsed_s().sum();
        let mut spent = self.clock.spent();
        // Trials that share a worker share its time.
        spent.trials_s += under_way_s / self.sharing() as f64;
        Progress {
            finished: finished_trials.finished(),
            variants: finished_trials.variants(),
            budget_trials: budget.trials,
            spent,
            budget_s: budget.time_s,
            best: finished_trials.best().clone(),
            workers: self.workers,
            trials_are_over: self.confirmation.trials_are_over(),
            end_s: self.expected_end_s(self.trainings_at_end()),
        }
    }

    /// The reason why no further trial begins, where the budget does not allow one.
    pub(super) fn budget_ending(&self) -> Option<Ending> {
        let trained = self.running.numbers().filter(|number| !self.trials.is_variant(*number));
        let begun = trained.count() + self.queue.len();
        let begun = self.trials.finished_trials().counted() + begun as u64;
        let has_begun_all = self.study.budget.trials.is_some_and(|budget| begun >= budget);
        match self.is_out_of_time() {
            // What still waits is not run any more.
            true if has_begun_all && self.queue.len() == 0 => Some(Ending::TrialsDone),
            true => Some(Ending::TimeSpent),
            false => has_begun_all.then_some(Ending::TrialsDone),
        }
    }

    /// Whether there is no time for another training.
    pub(super) fn is_out_of_time(&self) -> bool {
        if self.study.budget.time_s.is_none() || self.is_first() {
            return false;
        }
        // What a setting is predicted to take is known once it is proposed.
        let least_s = match self.predictions {
            Some(_) => 0.0,
            None => self.clock.expected_s(None),
        };
        self.clock.is_out() || !fits(least_s, self.left_for_trainings_s())
    }

    /// Whether a proposed setting fits into the time that is left for trainings.
    pub(super) fn has_time_for(&self, params: &Params) -> bool {
        self.is_first() || fits(self.expected_trial_s(params), self.left_for_trainings_s())
    }

    /// Whether a training as long as earlier ones fits into the time that is left for trainings.
    pub(super) fn has_time_for_training(&self) -> bool {
        fits(self.clock.expected_s(None), self.left_for_trainings_s())
    }

    /// Whether there is time for a variant, of which only the cost is measured.
    pub(super) fn has_time_for_variant(&self) -> bool {
        fits(self.measuring_s().unwrap_or(0.0), self.left_for_trials_s())
    }

    /// Whether the study has nothing yet: its first trial runs whatever its budget of time.
    fn is_first(&self) -> bool {
        self.trials.finished_trials().counted() == 0 && self.running.is_empty()
    }

    /// Seconds of the budget that are neither spent nor taken by trials under way; infinite where no time limits the study.
    pub(super) fn left_s(&self) -> f64 {
        let budget_s = self.study.budget.time_s.unwrap_or(f64::INFINITY);
        budget_s - self.clock.spent().total_s() - self.under_way_s()
    }

    /// Seconds that trials under way will have taken, if they take as long as others did.
    fn under_way_s(&self) -> f64 {
        let expected_s = self.clock.expected_s(None);
        let sharing = self.sharing() as f64;
        let all = self.running.elapsed_s();
        all.map(|elapsed_s| (elapsed_s / sharing).max(expected_s)).sum()
    }

    /// Number of trials that share a worker's time.
    fn sharing(&self) -> usize {
        let workers = self.workers.max(1);
        self.running.len().div_ceil(workers).max(1)
    }

    /// Seconds that are left for trials, trainings and variants.
    pub(super) fn left_for_trials_s(&self) -> f64 {
        self.left_s() - self.expected_end_s(self.trials.finished_trials().counted())
    }

    fn left_for_trainings_s(&self) -> f64 {
        let left_s = self.left_for_trials_s();
        if self.predictions.is_none() || left_s.is_infinite() {
            return left_s;
        }
        let most_s = SHARE_FOR_VARIANTS * (self.clock.spent().trials_s + self.under_way_s() + left_s);
        let each_s = self.measuring_s().unwrap_or(f64::INFINITY);
        left_s - most_s.min(Predictions::variants_left(self.trials) as f64 * each_s)
    }

    /// Seconds that are expected behind the trials of a study that will have made so many trainings: of what is measured again
    /// and of the confirmation, as far as trials leave time for them.
    pub(super) fn expected_end_s(&self, trainings: u64) -> f64 {
        let (again_s, confirm_s) = (self.expected_again_s(), self.expected_confirmation(trainings).seconds);
        let Some(budget_s) = self.study.budget.time_s else {
            return again_s + confirm_s;
        };
        let spent = self.clock.spent();
        let most = |share: f64, spent_s: f64| (share * budget_s - spent_s).max(0.0);
        again_s.min(most(SHARE_FOR_REPEATS, spent.measuring_again_s))
            + confirm_s.min(most(SHARE_FOR_CONFIRMATION, spent.confirming_s))
    }

    /// Seconds that repeats of what is disturbed are expected to take at the search's end, where the moments are quiet. None are kept
    /// where no moment is expected to be.
    fn expected_again_s(&self) -> f64 {
        if self.disturbed.expects_no_calm(self.study.budget.time_s) {
            return 0.0;
        }
        let each_s = self.clock.repeat_s().or_else(|| self.measuring_s()).unwrap_or(0.0);
        self.disturbed.left() as f64 * (each_s + LEAST_WAIT_S)
    }

    /// Whether a disturbed trial may be measured again.
    pub(super) fn has_time_for_repeat(&self) -> bool {
        let has_share = self.disturbed.has_share_left(self.study.budget.time_s);
        has_share && self.left_s() > self.clock.repeat_s().unwrap_or(0.0)
    }

    /// Whether a run that is expected to take so long may begin behind the trials.
    pub(super) fn has_time_behind(&self, expected_s: f64) -> bool {
        self.left_s() > 0.0 && expected_s <= self.left_behind_s()
    }

    /// Seconds that runs behind the trials may be expected to take in all.
    pub(super) fn left_behind_s(&self) -> f64 {
        self.left_s() + self.study.budget.time_s.map_or(0.0, |budget| SLACK * budget)
    }

    /// Seconds that a trial of these params is expected to take.
    fn expected_trial_s(&self, params: &Params) -> f64 {
        let predicted_s = self.predictions.and_then(|known| known.trial_s(params));
        let Some(predicted_s) = predicted_s else {
            return self.clock.expected_s(None);
        };
        // A part that another trial has measured is not run.
        let share = self.known.share(self.study, self.problem, params, self.kernels, None);
        let share = if share.is_finite() { share } else { 0.0 };
        self.clock.expected_s(Some(share * predicted_s))
    }
}

/// Whether a run that is expected to take `expected_s` may begin where `left_s` are left.
fn fits(expected_s: f64, left_s: f64) -> bool {
    left_s > 0.0 && expected_s <= left_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_once_the_time_is_up() {
        assert!(fits(0.0, 1.0) && fits(1.0, 1.0) && fits(1e9, f64::INFINITY));
        assert!(!fits(0.0, 0.0) && !fits(0.0, -1.0) && !fits(1.1, 1.0));
    }
}
