//! What a study may still spend, and how its time is shared out.
//!
//! `budget.time` is the seconds of all that a study runs, whichever worker runs it: trials, what is measured again with the
//! waits before, and the runs that confirm the recommendation. With B of them, S spent, U that trials under way are expected
//! to take in all, and E that the end is expected to need, a trial begins where it is expected to take at most
//!
//! left = B - S - U - E.
//!
//! E is bounded, so that trials have the larger part; the confirmation is cut down to what is left of B in the end.

use super::propose::Proposed;
use super::{Ending, Tuner};
use crate::store::SpentTime;
use peft_tune_core::study::{Params, TrialNumber};

/// Share of a budget of time that repeats of what was disturbed may take, and the waits before them.
pub(super) const SHARE_FOR_REPEATS: f64 = 0.1;
/// Most of a budget of time that trials leave to the runs that confirm the recommendation.
const SHARE_FOR_CONFIRMATION: f64 = 1.0 / 3.0;
/// Share of the time of trials that is left to trainings, where variants are measured behind them.
const SHARE_FOR_TRAININGS: f64 = 0.92;
/// How far a run that confirms may be expected to go beyond the budget, as a share of it.
const SLACK: f64 = 0.05;
/// Settings that a search may train behind its budget of trials, for longer trainings.
const TRIED_FOR_LONGER: u64 = 5;

/// How many took time, and how much together.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: u64,
    sum_s: f64,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.count += 1;
            self.sum_s += seconds;
        }
    }

    fn seconds(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_s / self.count as f64)
    }
}

/// What the runs of a study took so far, and what that lets expect of others.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// By what it went to, earlier searches included.
    pub(super) spent: SpentTime,
    trainings: Mean,
    /// Repeats of a cost that confirm it.
    costs: Mean,
    /// Repeats of what was disturbed.
    repeats: Mean,
    /// Seconds that whole trials were predicted to take, and that they took.
    predicted_s: f64,
    measured_s: f64,
    /// Whether the next setting was found to take too long. It may fit once a trial under way took less than expected.
    is_out: bool,
}

impl Clock {
    /// A clock of a study that has spent this; `trainings` are the seconds of its trials but for variants.
    pub(super) fn new(spent: SpentTime, trainings: impl Iterator<Item = f64>) -> Self {
        let mut clock = Self {
            spent,
            ..Self::default()
        };
        trainings.for_each(|seconds| clock.trainings.add(seconds));
        clock
    }

    /// A trial, or an attempt at one, is over.
    pub(super) fn trial_ended(&mut self, wall_s: f64, is_variant: bool) {
        self.spent.trials_s += wall_s;
        self.is_out = false;
        if !is_variant {
            self.trainings.add(wall_s);
        }
    }

    /// A disturbed trial was measured again.
    pub(super) fn measured_again(&mut self, wall_s: f64) {
        self.spent.measuring_again_s += wall_s;
        self.repeats.add(wall_s);
    }

    /// A cost was repeated.
    pub(super) fn cost_repeated(&mut self, wall_s: f64) {
        self.costs.add(wall_s);
    }

    /// Seconds of a trial in the mean, variants left out; `None` before the first that took time.
    pub(super) fn trial_s(&self) -> Option<f64> {
        self.trainings.seconds()
    }

    /// Seconds of a repeat of a cost in the mean; `None` before the first.
    pub(super) fn cost_s(&self) -> Option<f64> {
        self.costs.seconds()
    }

    /// Seconds of a repeat of what was disturbed in the mean; `None` before the first.
    pub(super) fn repeat_s(&self) -> Option<f64> {
        self.repeats.seconds()
    }

    /// Seconds that are expected of a trial, given those that are predicted of it: as many times these as earlier trials took, and
    /// the mean where nothing can be compared.
    fn expected_s(&self, predicted_s: Option<f64>) -> f64 {
        match (predicted_s, self.trial_s()) {
            (Some(predicted), _) if self.predicted_s > 0.0 => predicted * self.measured_s / self.predicted_s,
            (_, Some(mean)) => mean,
            (Some(predicted), None) => predicted,
            (None, None) => 0.0,
        }
    }
}

impl Tuner<'_> {
    /// Why no further trial begins, where the budget does not allow one.
    pub(super) fn budget_ending(&self) -> Option<Ending> {
        let trained = self.running.numbers().filter(|number| !self.trials.is_variant(*number));
        let begun = trained.count() + self.queue.len();
        let begun = self.trials.standing().counted() + begun as u64;
        if self.parts.study.budget.trials.is_some_and(|budget| begun >= budget) {
            return Some(Ending::TrialsDone);
        }
        self.is_out_of_time().then_some(Ending::TimeSpent)
    }

    /// Whether there is no time for another training.
    pub(super) fn is_out_of_time(&self) -> bool {
        if self.parts.study.budget.time_s.is_none() || self.is_first() {
            return false;
        }
        // What a setting is predicted to take is known once it is proposed.
        let least_s = match self.expecting {
            Some(_) => 0.0,
            None => self.clock.expected_s(None),
        };
        self.clock.is_out || !fits(least_s, self.left_for_trainings_s())
    }

    /// Whether a proposed setting fits into the time that is left for trainings. Where it does not, trials are over.
    pub(super) fn has_time_for(&mut self, params: &Params) -> bool {
        let has_time = self.is_first() || fits(self.expected_trial_s(params), self.left_for_trainings_s());
        self.clock.is_out |= !has_time;
        has_time
    }

    /// Whether there is time for a variant, of which only the cost is measured.
    pub(super) fn has_time_for_variant(&self) -> bool {
        fits(self.measuring_s().unwrap_or(0.0), self.left_for_trials_s())
    }

    /// Whether the study has nothing yet: its first trial runs whatever its budget of time.
    fn is_first(&self) -> bool {
        self.trials.standing().counted() == 0 && self.running.is_empty()
    }

    /// Seconds of the budget that are neither spent nor taken by trials under way; infinite where no time limits the study.
    pub(super) fn left_s(&self) -> f64 {
        let budget_s = self.parts.study.budget.time_s.unwrap_or(f64::INFINITY);
        budget_s - self.clock.spent.total_s() - self.under_way_s()
    }

    /// Seconds that trials under way will have taken, if they take as long as others did.
    fn under_way_s(&self) -> f64 {
        let expected_s = self.clock.expected_s(None);
        let sharing = self.sharing() as f64;
        let all = self.running.elapsed_s();
        all.map(|elapsed_s| (elapsed_s / sharing).max(expected_s)).sum()
    }

    /// How many trials share a worker's time.
    pub(super) fn sharing(&self) -> usize {
        let workers = self.parts.evaluator.workers().max(1);
        self.running.len().div_ceil(workers).max(1)
    }

    /// Seconds that are left for trials, trainings and variants.
    pub(super) fn left_for_trials_s(&self) -> f64 {
        self.left_s() - self.expected_end_s(self.trials.standing().counted())
    }

    fn left_for_trainings_s(&self) -> f64 {
        let left_s = self.left_for_trials_s();
        if self.expecting.is_none() || left_s.is_infinite() {
            return left_s;
        }
        left_s - (1.0 - SHARE_FOR_TRAININGS) * (self.clock.spent.trials_s + self.under_way_s() + left_s)
    }

    /// Seconds that are expected behind the trials of a study that will have made so many trainings: of what is measured again
    /// and of the confirmation, as far as trials leave time for them.
    pub(super) fn expected_end_s(&self, trainings: u64) -> f64 {
        let (again_s, confirm_s) = (self.expected_again_s(), self.expected_confirmation(trainings).seconds);
        let Some(budget_s) = self.parts.study.budget.time_s else {
            return again_s + confirm_s;
        };
        let spent = &self.clock.spent;
        let most = |share: f64, spent_s: f64| (share * budget_s - spent_s).max(0.0);
        again_s.min(most(SHARE_FOR_REPEATS, spent.measuring_again_s))
            + confirm_s.min(most(SHARE_FOR_CONFIRMATION, spent.confirming_s))
    }

    /// Whether a run that is expected to take so long may begin behind the trials.
    pub(super) fn has_time_behind(&self, expected_s: f64) -> bool {
        let slack_s = self.parts.study.budget.time_s.map_or(0.0, |budget| SLACK * budget);
        let left_s = self.left_s();
        left_s > 0.0 && expected_s <= left_s + slack_s
    }

    /// Seconds that a trial of these params is expected to take.
    fn expected_trial_s(&self, params: &Params) -> f64 {
        let Some(predicted_s) = self.predicted_trial_s(params) else {
            return self.clock.expected_s(None);
        };
        // A part that another trial has measured is not run.
        let share = self.memory.share(self.parts.study, &self.problem, params, None);
        let share = if share.is_finite() { share } else { 0.0 };
        self.clock.expected_s(Some(share * predicted_s))
    }

    /// Counts what a trial took; `is_whole` says whether it ran all of its phases to their end.
    pub(super) fn note_trial_time(&mut self, number: TrialNumber, wall_s: f64, is_whole: bool) {
        let whole = self.trials.get(number).filter(|_| is_whole && wall_s > 0.0);
        let predicted_s = whole.and_then(|trial| self.predicted_trial_s(&trial.params));
        if let Some(predicted_s) = predicted_s {
            self.clock.predicted_s += predicted_s;
            self.clock.measured_s += wall_s;
        }
        self.clock.trial_ended(wall_s, self.trials.is_variant(number));
    }

    /// Whether trials go on behind a confirmation that took less time than was left for it.
    pub(super) fn goes_on_after(&mut self, ending: &Ending) -> bool {
        if *ending != Ending::TimeSpent || !self.is_confirmed || self.parts.interrupt.is_requested() {
            return false;
        }
        self.clock.is_out = false;
        self.trials_are_over = false;
        let has_time = fits(self.clock.expected_s(None), self.left_for_trainings_s());
        let goes_on = has_time && self.budget_ending().is_none();
        self.trials_are_over = !goes_on;
        goes_on
    }

    /// The setting that a finalist has in a faster precision or at half its learning rate, once nothing else is left to do; a few at
    /// most, and as far as there is time for them and for the longer trainings that they are for.
    pub(super) fn next_for_longer(&mut self) -> Option<Proposed> {
        if self.tried_for_longer >= TRIED_FOR_LONGER {
            return None;
        }
        let trial_s = self.clock.expected_s(None);
        let left_s = self.left_s() - trial_s;
        if left_s <= 0.0 {
            return None;
        }
        let params = self.for_longer(left_s)?;
        self.tried_for_longer += 1;
        Some(Proposed { params, score: None })
    }

    /// What the runs of the study took so far, earlier searches included.
    pub fn spent(&self) -> SpentTime {
        self.clock.spent
    }
}

/// Whether what is expected to take so long may begin where so much is left.
fn fits(expected_s: f64, left_s: f64) -> bool {
    left_s > 0.0 && expected_s <= left_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_expects_the_mean_until_it_can_compare_predictions() {
        let mut clock = Clock::new(SpentTime::default(), [].into_iter());
        assert_eq!((clock.expected_s(None), clock.expected_s(Some(3.0))), (0.0, 3.0));
        clock.trial_ended(4.0, false);
        clock.trial_ended(8.0, false);
        // Variants are no trainings, and what was taken over took no time.
        clock.trial_ended(1.0, true);
        clock.trial_ended(0.0, false);
        assert_eq!((clock.expected_s(None), clock.expected_s(Some(3.0))), (6.0, 6.0));
        assert_eq!(clock.spent.total_s(), 13.0);
        (clock.predicted_s, clock.measured_s) = (2.0, 5.0);
        assert_eq!((clock.expected_s(None), clock.expected_s(Some(3.0))), (6.0, 7.5));
    }

    #[test]
    fn nothing_begins_once_the_time_is_up() {
        assert!(fits(0.0, 1.0) && fits(1.0, 1.0) && fits(1e9, f64::INFINITY));
        assert!(!fits(0.0, 0.0) && !fits(0.0, -1.0) && !fits(1.1, 1.0));
    }
}
