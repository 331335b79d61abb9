//! Stops a trial once it cannot enter the front even if it ends optimistically, or is not worth its further steps.

use super::ends::{End, end};
use super::{Field, Progress, Pruner, Verdict};
use crate::hypervolume::{contribution, hypervolume};

/// Times within a trial at which its curve is looked at, as a share of its steps.
const LOOKS: u64 = 20;
/// Middles of nine equally likely parts of the standard normal distribution.
const PARTS: [f64; 9] = [-1.5932, -0.9674, -0.5895, -0.2822, 0.0, 0.2822, 0.5895, 0.9674, 1.5932];

/// Stops where a finished trial is at least as good in every objective as this one's optimistic end: the known objectives
/// with the value that each unknown one undercuts with a probability of 0.05 only, from the trial's own curve, or, before
/// that says anything, from what the surrogate expects of its settings. What the trial itself told is never beyond that end:
/// where it reports better than was expected, the expectation was wrong.
///
/// That bound is valid for the front. Beyond it, a trial is stopped for `worth`: when what it is still expected to add to
/// the hypervolume, for each step it has left, is less than this share of what a step is worth elsewhere
/// ([`Progress::rate`]). The steps then go to other settings; with 0 the final front is that of full trials. With
/// `least_gain` above 0 it also stops what would add less than that share of the hypervolume even optimistically.
///
/// A stopped trial teaches what its curve says with that uncertainty, and "at least this", not a made-up end (a naive
/// extrapolation poisons the surrogate).
#[derive(Clone, Debug, PartialEq)]
pub struct Dominance {
    /// Share of the trial's steps before which its own curve counts for nothing.
    pub warm_up: f64,
    /// Share of the hypervolume that is too little to continue for.
    pub least_gain: f64,
    /// Share of what a step is worth elsewhere below which a trial's own steps are not worth running.
    pub worth: f64,
}

/// The end that is expected of each objective: known, at the end of its curve, or not below what others expect.
struct Outcome {
    /// Values of the objectives at best.
    optimistic: Vec<f64>,
    ends: Vec<Option<End>>,
}

impl Dominance {
    fn outcome(&self, trial: &Progress, field: Field<'_>) -> Option<Outcome> {
        let warm = !trial.is_warming_up(self.warm_up);
        let objectives = 0..trial.known.len();
        let unknown = |objective: &usize| warm && trial.known[*objective].is_none();
        let ends: Vec<Option<End>> = objectives
            .map(|objective| Some(objective).filter(unknown).and_then(|one| end(trial, one, field)))
            .collect();
        let optimistic = ends.iter().enumerate().map(|(objective, end)| {
            if trial.known[objective].is_some() {
                return trial.known[objective];
            }
            let end = end.map(|end| end.low).or(trial.expected_low[objective])?;
            Some(trial.reported[objective].map_or(end, |reported| reported.min(end)))
        });
        Some(Outcome {
            optimistic: optimistic.collect::<Option<_>>()?,
            ends,
        })
    }
}

impl Pruner for Dominance {
    fn name(&self) -> &'static str {
        "dominance"
    }

    fn looks_at(&self, trial: &Progress) -> bool {
        is_time_to_look(trial)
    }

    fn judge(&self, trial: &Progress, field: Field<'_>) -> Verdict {
        if trial.known.iter().all(Option::is_some) {
            return Verdict::Continue;
        }
        let Some(outcome) = self.outcome(trial, field) else {
            return Verdict::Continue;
        };
        match self.hopeless(trial, &outcome, field) {
            None => Verdict::Continue,
            Some(reason) => Verdict::Stop {
                reason,
                at_least: outcome.ends.iter().map(|end| end.map(|end| end.low)).collect(),
                expected: outcome
                    .ends
                    .iter()
                    .map(|end| end.map(|end| (end.median, end.deviation)))
                    .collect(),
            },
        }
    }
}

impl Dominance {
    /// The reason why the end is not worth reaching.
    fn hopeless(&self, trial: &Progress, outcome: &Outcome, field: Field<'_>) -> Option<String> {
        let finished: Vec<(&Progress, Vec<f64>)> = field
            .others
            .iter()
            .filter(|other| other.number != trial.number && other.feasible)
            .filter_map(|other| Some((other, other.values()?)))
            .collect();
        let optimistic = &outcome.optimistic;
        let better = finished
            .iter()
            .find(|(_, values)| values.iter().zip(optimistic).all(|(value, limit)| value <= limit));
        if let Some((other, _)) = better {
            return Some(format!(
                "trial {} is better even if this one ends at its best",
                other.number
            ));
        }
        if outcome.ends.iter().all(Option::is_none) {
            return None;
        }
        let points: Vec<Vec<f64>> = finished.into_iter().map(|(_, values)| values).collect();
        self.too_little(outcome, &points, field.reference)
            .or_else(|| self.worth_less(trial, outcome, &points, field.reference))
    }

    fn too_little(&self, outcome: &Outcome, points: &[Vec<f64>], reference: &[f64]) -> Option<String> {
        if self.least_gain <= 0.0 {
            return None;
        }
        let volume = hypervolume(points, reference);
        let gain = contribution(&outcome.optimistic, points, reference);
        (volume > 0.0 && gain < self.least_gain * volume).then(|| {
            format!(
                "at its best this one adds {:.3}% to the hypervolume, below {:.3}%",
                100.0 * gain / volume,
                100.0 * self.least_gain
            )
        })
    }

    fn worth_less(
        &self,
        trial: &Progress,
        outcome: &Outcome,
        points: &[Vec<f64>],
        reference: &[f64],
    ) -> Option<String> {
        let rate = trial.rate.filter(|_| self.worth > 0.0)?;
        let left = trial.total_steps?.saturating_sub(trial.step());
        let gain = expected_gain(trial, outcome, points, reference)?;
        let volume = hypervolume(points, reference);
        (volume > 0.0 && gain < self.worth * rate * left as f64).then(|| {
            format!(
                "it is expected to add {:.3}% to the hypervolume; other settings would add {:.3}% in the {left} steps it has left",
                100.0 * gain / volume,
                100.0 * rate * left as f64 / volume
            )
        })
    }
}

/// Hypervolume that the trial is expected to add; `None` where an objective is neither known nor on its way.
fn expected_gain(trial: &Progress, outcome: &Outcome, points: &[Vec<f64>], reference: &[f64]) -> Option<f64> {
    // Objectives that are unknown together are taken to end well or badly together.
    let at = |part: f64| -> Option<Vec<f64>> {
        let both = trial.known.iter().zip(&outcome.ends);
        both.map(|(known, end)| known.or(end.map(|end| end.median + part * end.deviation)))
            .collect()
    };
    let mut sum = 0.0;
    for part in PARTS {
        sum += contribution(&at(part)?, points, reference);
    }
    Some(sum / PARTS.len() as f64)
}

/// Whether the last report passed one of the shares at which curves are looked at. Which those are does not depend on how
/// often a trial reports, and a curve of a thousand reports costs no more than one of twenty.
fn is_time_to_look(trial: &Progress) -> bool {
    let Some(total) = trial.total_steps.filter(|_| trial.step() > 2) else {
        return true;
    };
    let look = |step: u64| LOOKS * step / total.max(1);
    look(trial.step()) > look(trial.previous_step())
}

#[cfg(test)]
mod tests {
    use super::super::progress::tests::{field, progress};
    use super::*;

    const PRUNER: Dominance = Dominance {
        warm_up: 0.05,
        least_gain: 0.0,
        worth: 0.0,
    };

    #[test]
    fn a_hopeless_trial_stops_and_a_hopeful_or_cheaper_one_goes_on() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        let Verdict::Stop {
            reason,
            at_least,
            expected,
        } = PRUNER.judge(&progress(1, 1.0, 3.0, 40), field(&finished))
        else {
            panic!("a trial one worse in loss at the same cost goes on");
        };
        assert_eq!(reason, "trial 0 is better even if this one ends at its best");
        assert_eq!((at_least[0], expected[0]), (None, None));
        assert!(
            at_least[1].is_some_and(|bound| bound > 2.1 && bound < 3.1),
            "{at_least:?}"
        );
        let (median, deviation) = expected[1].unwrap();
        assert!((median - 3.05).abs() < 0.1 && deviation < 0.3, "{expected:?}");
        for hopeful in [
            progress(1, 1.0, 1.9, 40),
            progress(1, 0.5, 3.0, 40),
            progress(1, 1.0, 3.0, 0),
        ] {
            assert_eq!(PRUNER.judge(&hopeful, field(&finished)), Verdict::Continue);
        }
        assert_eq!(PRUNER.judge(&progress(1, 1.0, 3.0, 40), field(&[])), Verdict::Continue);
    }

    #[test]
    fn what_the_surrogate_expects_stops_a_trial_before_its_curve_begins() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        let mut trial = progress(1, 1.0, 3.0, 0);
        trial.expected_low[1] = Some(2.5);
        let verdict = PRUNER.judge(&trial, field(&finished));
        assert!(
            matches!(&verdict, Verdict::Stop { at_least, .. } if at_least == &[None, None]),
            "{verdict:?}"
        );
        trial.expected_low[1] = Some(1.5);
        assert_eq!(PRUNER.judge(&trial, field(&finished)), Verdict::Continue);
    }

    #[test]
    fn a_small_gain_stops_only_where_it_is_asked_for() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        // A hundredth cheaper, so it enters the front, but hardly.
        let trial = progress(1, 0.99, 3.0, 40);
        assert_eq!(PRUNER.judge(&trial, field(&finished)), Verdict::Continue);
        let strict = Dominance {
            least_gain: 0.01,
            ..PRUNER
        };
        assert!(matches!(strict.judge(&trial, field(&finished)), Verdict::Stop { .. }));
    }

    #[test]
    fn steps_that_are_worth_more_elsewhere_are_not_run() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        // It adds 0.1 x 7 to a volume of 9 x 8.
        let mut trial = progress(1, 0.9, 3.0, 40);
        let worth = Dominance { worth: 1.0, ..PRUNER };
        trial.rate = Some(0.01);
        assert_eq!(worth.judge(&trial, field(&finished)), Verdict::Continue);
        trial.rate = Some(0.015);
        let Verdict::Stop { reason, .. } = worth.judge(&trial, field(&finished)) else {
            panic!("it goes on for less than half of what its steps are worth")
        };
        assert!(reason.contains("in the 60 steps it has left"), "{reason}");
        trial.rate = None;
        assert_eq!(worth.judge(&trial, field(&finished)), Verdict::Continue);
    }

    #[test]
    fn a_trial_that_reports_better_than_expected_goes_on() {
        let finished = [progress(0, 2.0, 2.0, 100)];
        let mut trial = progress(1, 2.0, 2.0, 0);
        trial.known = vec![None, None];
        trial.expected_low = vec![Some(2.5), Some(2.5)];
        assert!(matches!(PRUNER.judge(&trial, field(&finished)), Verdict::Stop { .. }));
        trial.reported = vec![Some(1.5), Some(4.0)];
        assert_eq!(PRUNER.judge(&trial, field(&finished)), Verdict::Continue);
        // A report that is no better than what others reached proves nothing.
        trial.reported = vec![Some(2.2), Some(4.0)];
        assert!(matches!(PRUNER.judge(&trial, field(&finished)), Verdict::Stop { .. }));
    }

    #[test]
    fn an_infeasible_trial_stops_nobody() {
        let mut finished = [progress(0, 1.0, 2.0, 100)];
        finished[0].feasible = false;
        assert_eq!(
            PRUNER.judge(&progress(1, 1.0, 3.0, 40), field(&finished)),
            Verdict::Continue
        );
    }
}
