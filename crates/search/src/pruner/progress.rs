//! The seam between a running trial and the rules that may stop it.

use crate::learning_curve::Report;
use peft_tune_core::study::TrialNumber;

/// Knowledge of one trial's objectives, under way or finished. All values are minimised, in the problem's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub number: TrialNumber,
    /// Final values of the objectives; `None` for those still unknown.
    pub known: Vec<Option<f64>>,
    /// Reports on the way of each objective, ascending by step.
    pub curves: Vec<Vec<Report>>,
    /// What each unknown objective cannot well end below, from other trials; `None` where nothing is known.
    pub expected_low: Vec<Option<f64>>,
    /// The best value of each objective that the trial itself told on its way, final or not; `None` before the first.
    pub reported: Vec<Option<f64>>,
    /// Steps of the whole trial, where they are known.
    pub total_steps: Option<u64>,
    /// Hypervolume that a step is worth elsewhere: what the next trial is expected to add for each of its steps. `None` where
    /// nobody expects anything.
    pub rate: Option<f64>,
    /// Whether it is complete and keeps every constraint.
    pub feasible: bool,
}

impl Progress {
    /// The last step reported; 0 before the first.
    pub fn step(&self) -> u64 {
        let last = self.curves.iter().filter_map(|curve| curve.last());
        last.map(|(step, _)| *step).max().unwrap_or(0)
    }

    /// The step reported before the last one; 0 where there is none.
    pub(super) fn previous_step(&self) -> u64 {
        let last = self.step();
        let all = self.curves.iter().flatten().map(|(step, _)| *step);
        all.filter(|step| *step < last).max().unwrap_or(0)
    }

    /// The share of its steps that the trial has done; `None` while their number is unknown.
    pub(super) fn share(&self) -> Option<f64> {
        self.total_steps.map(|total| self.step() as f64 / total.max(1) as f64)
    }

    /// Whether the trial has done less than a share of its steps; true while their number is unknown.
    pub(super) fn is_warming_up(&self, share: f64) -> bool {
        self.share().is_none_or(|done| done < share)
    }

    /// An objective's best value within a share of the trial's steps, which makes trials of different batch sizes
    /// comparable; `None` where the trial has not come as far.
    pub(super) fn best_by(&self, objective: usize, share: f64) -> Option<f64> {
        // Half a step of slack: shares are quotients.
        let last = share * self.total_steps? as f64 + 0.5;
        if (self.step() as f64) < last - 1.0 {
            return None;
        }
        let until = self.curves[objective].iter().take_while(|(at, _)| *at as f64 <= last);
        until.map(|(_, value)| *value).min_by(f64::total_cmp)
    }

    /// All final values, of a trial that has them.
    pub(super) fn values(&self) -> Option<Vec<f64>> {
        self.known.iter().copied().collect()
    }
}

/// The trials that one is judged against.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// Trials beside the judged one, finished and under way.
    pub others: &'a [Progress],
    /// Reference point of the hypervolume, minimised.
    pub reference: &'a [f64],
}

/// A judgement of a trial: whether it continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Continue,
    /// Stop; `reason` says why in one phrase with its numbers, `at_least` what each objective (minimised) could not have
    /// fallen below, and `expected` where it would have ended, with its standard deviation, where the rule knows that from
    /// the trial itself.
    Stop {
        reason: String,
        at_least: Vec<Option<f64>>,
        expected: Vec<Option<(f64, f64)>>,
    },
}

/// Decides after each report whether a trial continues.
pub trait Pruner: Send {
    /// Name as the space file and the database write it.
    fn name(&self) -> &'static str;

    /// Whether it is time to judge a trial, seen alone: most reports change nothing, and a judgement looks at all trials.
    fn looks_at(&self, _trial: &Progress) -> bool {
        true
    }

    /// Judges one trial against the others. A function of its arguments alone.
    fn judge(&self, trial: &Progress, field: Field<'_>) -> Verdict;
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A trial with known cost 1 whose loss after `step` steps is `level` plus a falling term.
    pub(in crate::pruner) fn progress(number: u64, cost: f64, level: f64, steps: u64) -> Progress {
        let loss = |step: u64| level + (1.0 + step as f64 / 5.0).powf(-1.0);
        let curve: Vec<Report> = (1..=steps / 5).map(|index| (5 * index, loss(5 * index))).collect();
        let finished = steps >= 100;
        Progress {
            number: TrialNumber(number),
            known: vec![Some(cost), finished.then(|| loss(100))],
            curves: vec![Vec::new(), curve],
            expected_low: vec![None; 2],
            reported: vec![None; 2],
            total_steps: Some(100),
            rate: None,
            feasible: finished,
        }
    }

    /// The field of two objectives up to 10.
    pub(in crate::pruner) fn field(others: &[Progress]) -> Field<'_> {
        Field {
            others,
            reference: &[10.0, 10.0],
        }
    }

    #[test]
    fn steps_are_those_of_the_longest_curve() {
        let mut trial = progress(0, 1.0, 2.0, 20);
        assert_eq!((trial.step(), trial.previous_step()), (20, 15));
        assert!(!trial.is_warming_up(0.2) && trial.is_warming_up(0.21));
        trial.total_steps = None;
        assert!(trial.is_warming_up(0.0));
    }
}
