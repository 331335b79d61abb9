//! The median rule (Golovin et al. 2017) on the first objective that is learned step by step.

use super::{Field, Progress, Pruner, Verdict};

/// Stops a trial whose best value so far is worse than the median of the others' best values by the same step. It knows
/// nothing of the other objectives: use it where only the learned one matters.
#[derive(Clone, Debug, PartialEq)]
pub struct Median {
    /// Trials that must have reached the step.
    pub least_trials: usize,
    /// Share of the trial's steps before which nothing is stopped.
    pub warm_up: f64,
}

impl Pruner for Median {
    fn name(&self) -> &'static str {
        "median"
    }

    fn judge(&self, trial: &Progress, field: Field<'_>) -> Verdict {
        let step = trial.step();
        let learned = (0..trial.known.len()).find(|objective| trial.known[*objective].is_none());
        let (Some(learned), Some(share)) = (learned.filter(|_| !trial.is_warming_up(self.warm_up)), trial.share())
        else {
            return Verdict::Continue;
        };
        let others = field.others.iter().filter(|other| other.number != trial.number);
        let mut bests: Vec<f64> = others.filter_map(|other| other.best_by(learned, share)).collect();
        let Some(own) = trial
            .best_by(learned, share)
            .filter(|_| bests.len() >= self.least_trials)
        else {
            return Verdict::Continue;
        };
        bests.sort_by(f64::total_cmp);
        let median = 0.5 * (bests[(bests.len() - 1) / 2] + bests[bests.len() / 2]);
        if own <= median {
            return Verdict::Continue;
        }
        Verdict::Stop {
            reason: format!(
                "{own:.4} after {step} steps is above the median {median:.4} of {} trials",
                bests.len()
            ),
            at_least: vec![None; trial.known.len()],
            expected: vec![None; trial.known.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress::tests::{field, progress};
    use super::*;

    #[test]
    fn the_worse_half_stops_once_enough_trials_are_there() {
        let pruner = Median {
            least_trials: 5,
            warm_up: 0.1,
        };
        let others: Vec<Progress> = (0..6)
            .map(|index| progress(index, 1.0, 2.0 + 0.1 * index as f64, 100))
            .collect();
        assert!(matches!(
            pruner.judge(&progress(9, 1.0, 2.4, 50), field(&others)),
            Verdict::Stop { .. }
        ));
        assert_eq!(
            pruner.judge(&progress(9, 1.0, 2.1, 50), field(&others)),
            Verdict::Continue
        );
        assert_eq!(
            pruner.judge(&progress(9, 1.0, 2.4, 50), field(&others[..4])),
            Verdict::Continue
        );
        assert_eq!(
            pruner.judge(&progress(9, 1.0, 2.4, 5), field(&others)),
            Verdict::Continue
        );
    }
}
