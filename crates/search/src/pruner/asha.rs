//! Multi-objective asynchronous successive halving (Schmucker et al. 2021), in its stopping form.

use super::{Field, Progress, Pruner, Verdict};
use crate::pareto;

/// Rungs stand at `total_steps / eta^k`. A trial that reaches a rung continues if it is among the best 1 / eta of all
/// that have reached it, ordered by Pareto rank and, within a rank, by crowding.
#[derive(Clone, Debug, PartialEq)]
pub struct Asha {
    /// Reduction factor, above 1.
    pub eta: f64,
    /// Least steps of a rung.
    pub least_steps: u64,
}

impl Asha {
    /// The highest rung that `step` has reached and the step before it had not, in steps.
    fn rung(&self, previous: u64, step: u64, total: u64) -> Option<u64> {
        let mut rung = total as f64 / self.eta;
        while rung >= self.least_steps.max(1) as f64 {
            let at = rung.ceil() as u64;
            if previous < at && at <= step {
                return Some(at);
            }
            rung /= self.eta;
        }
        None
    }
}

impl Pruner for Asha {
    fn name(&self) -> &'static str {
        "asha"
    }

    fn judge(&self, trial: &Progress, field: Field<'_>) -> Verdict {
        let Some(total) = trial.total_steps else {
            return Verdict::Continue;
        };
        let Some(rung) = self.rung(trial.previous_step(), trial.step(), total) else {
            return Verdict::Continue;
        };
        let share = rung as f64 / total as f64;
        let Some(own) = trial.at_rung(share) else {
            return Verdict::Continue;
        };
        let others = field.others.iter().filter(|other| other.number != trial.number);
        let mut points: Vec<Vec<f64>> = others.filter_map(|other| other.at_rung(share)).collect();
        points.push(own);
        let kept = (points.len() as f64 / self.eta).ceil() as usize;
        let place = place_of_last(&points);
        if place < kept {
            return Verdict::Continue;
        }
        Verdict::Stop {
            reason: format!(
                "rank {} of {} after {rung} steps, {kept} continue",
                place + 1,
                points.len()
            ),
            at_least: vec![None; trial.known.len()],
            expected: vec![None; trial.known.len()],
        }
    }
}

impl Progress {
    /// All objectives as they stood at a rung: the learned ones by their best value until then, the others by their end.
    /// `None` where the trial did not come as far.
    fn at_rung(&self, share: f64) -> Option<Vec<f64>> {
        let value = |objective: usize| match self.curves[objective].is_empty() {
            true => self.known[objective],
            false => self.best_by(objective, share),
        };
        (0..self.known.len()).map(value).collect()
    }
}

/// Number of points that are better than the last.
fn place_of_last(points: &[Vec<f64>]) -> usize {
    let ranks = pareto::ranks(points);
    let last = points.len() - 1;
    let layer: Vec<usize> = (0..points.len()).filter(|index| ranks[*index] == ranks[last]).collect();
    let crowding = pareto::crowding(&layer.iter().map(|index| points[*index].as_slice()).collect::<Vec<_>>());
    let own = crowding.last().copied().unwrap_or(0.0);
    let before = ranks.iter().filter(|rank| **rank < ranks[last]).count();
    before + crowding.iter().filter(|gap| **gap > own).count()
}

#[cfg(test)]
mod tests {
    use super::super::progress::tests::{field, progress};
    use super::*;

    const ASHA: Asha = Asha {
        eta: 3.0,
        least_steps: 1,
    };

    #[test]
    fn rungs_are_met_once() {
        let asha = ASHA;
        assert_eq!(asha.rung(0, 5, 100), Some(4));
        assert_eq!(asha.rung(5, 10, 100), None);
        assert_eq!(asha.rung(10, 15, 100), Some(12));
        assert_eq!(asha.rung(30, 35, 100), Some(34));
        assert_eq!(asha.rung(35, 100, 100), None);
    }

    #[test]
    fn only_the_best_third_passes_a_rung_and_cheap_trials_count_as_good() {
        let asha = ASHA;
        let others: Vec<Progress> = (0..6)
            .map(|index| progress(index, 1.0, 2.0 + 0.1 * index as f64, 100))
            .collect();
        assert!(matches!(
            asha.judge(&progress(9, 1.0, 2.45, 35), field(&others)),
            Verdict::Stop { .. }
        ));
        assert_eq!(
            asha.judge(&progress(9, 1.0, 1.95, 35), field(&others)),
            Verdict::Continue
        );
        // Worse in loss, but the cheapest of all: on the front.
        assert_eq!(
            asha.judge(&progress(9, 0.1, 2.45, 35), field(&others)),
            Verdict::Continue
        );
        // Between rungs nothing is judged.
        assert_eq!(
            asha.judge(&progress(9, 1.0, 2.45, 45), field(&others)),
            Verdict::Continue
        );
    }
}
