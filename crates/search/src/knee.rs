//! The knee of a front: what its objectives are scaled by, and which point it is.
//!
//! It is looked for among the trials that learn nearly as much as the best one ([`LEARNED_SHARE`]), where their loss
//! before the training is known: the ends of a front are fast settings that hardly learn, and nobody trains for that. Of
//! these it is the one with the least
//!
//! sum over costs of log2(cost / least cost) + (loss - least loss) / (most loss that counts - least loss)
//!
//! so that half the speed weighs as much as twice the memory, and as much as the last 5% of what is learned. Where giving
//! up a little of one objective buys more of another, a better point is left. No trial but the two that are compared and
//! the one that learns most has a say in which of them is the knee (the costs' part is the product of Nash 1950, whose
//! solution does not depend on alternatives that are not chosen either).
//!
//! Design note: what the worst points found are scaled by (the next paragraph) moves with each of them, as nadir points do
//! (Deb, Miettinen and Chaudhuri 2010). Where two trainings were left whose losses differ by 0.2%, these 0.2% weighed as
//! much as half the speed, and one variant more or less changed what the costs weigh.
//!
//! Where that loss is not known, every objective is scaled to [0, 1] over the front (0 its best value, 1 its worst). The knee is
//! the point farthest below the hyperplane through the corners of that cube where one objective is worst and the
//! others are best, sum(u) = 1 (Das 1999). A front that bulges the other way has no such point; then it is the one
//! nearest to the corner where all are best.

use super::Problem;
use super::history::{Evaluated, evaluated, objective_values, pareto_front};
use super::learning::loss_after_learning;
use peft_tune_core::objective::{Bound, Constraint, LOSS};
use peft_tune_core::study::Trial;

/// The part of the best trial's gain, its held-out loss before the training less the loss after it, that a trial must
/// reach to be taken as the knee.
pub(super) const LEARNED_SHARE: f64 = 0.95;

/// The loss of a trial that learns [`LEARNED_SHARE`] of what the best one learns, as a limit.
pub(super) fn learned_limit(limited: &Problem, complete: &[Evaluated<'_>]) -> Option<Constraint> {
    Some(Constraint {
        metric: LOSS.to_owned(),
        bound: Bound::AtMost(loss_after_learning(limited, complete, LEARNED_SHARE)?),
    })
}

/// How much farther from the ideal than the knee of `history` another trial is, by the measure that chose that knee; at
/// least by as much as its loss is beyond what counts. `None` where there is no knee or the trial lacks an objective.
pub fn beyond_knee(problem: &Problem, history: &[Trial], trial: &Trial) -> Option<f64> {
    let learned = learned_limit(problem, &evaluated(problem, history));
    let mut limited = problem.clone();
    limited.constraints.extend(learned.clone());
    let front = pareto_front(&limited, history);
    let scales = scales(problem, &front, learned.as_ref());
    let scaled = Scaled::new(&front, &scales);
    let knee = scaled
        .points
        .iter()
        .map(|point| scaled.measure.of(point))
        .min_by(f64::total_cmp)?;
    let point = of_values(&scales, &objective_values(problem, trial.state.metrics()?)?);
    let farther = scaled.measure.of(&point) - knee;
    let losses = problem
        .objectives
        .iter()
        .zip(&point)
        .filter(|(one, _)| one.metric == LOSS);
    Some(losses.map(|(_, u)| u - 1.0).fold(farther.max(0.0), f64::max))
}

/// How one objective's values, minimised, are made comparable with the others'.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// 0 at the first, 1 at the second.
    Range(f64, f64),
    /// Number of times that a value is twice the best, or half of it where it is maximised and so negative.
    Doublings(f64),
}

impl Scale {
    fn of(self, value: f64) -> f64 {
        match self {
            Self::Range(best, worst) if worst > best => (value - best) / (worst - best),
            Self::Range(..) => 0.0,
            Self::Doublings(best) => (value / best).log2() * best.signum(),
        }
    }
}

/// The scale of each objective on a front; `learned` is the loss that counts at most.
pub(super) fn scales(problem: &Problem, front: &[Evaluated<'_>], learned: Option<&Constraint>) -> Vec<Scale> {
    let of = |index: usize| {
        let values = || front.iter().map(|one| one.values[index]);
        let best = values().fold(f64::INFINITY, f64::min);
        let worst = values().fold(f64::NEG_INFINITY, f64::max);
        match learned {
            Some(limit) if limit.metric == problem.objectives[index].metric => match limit.bound {
                Bound::AtMost(most) => Scale::Range(best, most),
                Bound::AtLeast(_) => Scale::Range(best, worst),
            },
            Some(_) if best * worst > 0.0 => Scale::Doublings(best),
            _ => Scale::Range(best, worst),
        }
    };
    (0..problem.objectives.len()).map(of).collect()
}

fn of_values(scales: &[Scale], values: &[f64]) -> Vec<f64> {
    scales
        .iter()
        .zip(values)
        .map(|(scale, value)| scale.of(*value))
        .collect()
}

/// How far a point is from what is ideal.
#[derive(Clone, Copy)]
enum Measure {
    /// The sum: along the normal of the plane through the corners.
    Plane,
    /// The distance from the corner where all objectives are best.
    Corner,
}

impl Measure {
    fn of(self, point: &[f64]) -> f64 {
        match self {
            Self::Plane => point.iter().sum(),
            Self::Corner => point.iter().map(|u| u * u).sum::<f64>().sqrt(),
        }
    }
}

/// A front's scaled values, and how their knee is measured.
pub(super) struct Scaled {
    points: Vec<Vec<f64>>,
    measure: Measure,
}

impl Scaled {
    pub(super) fn new(front: &[Evaluated<'_>], scales: &[Scale]) -> Self {
        let points: Vec<Vec<f64>> = front.iter().map(|one| of_values(scales, &one.values)).collect();
        let is_absolute = scales.iter().any(|scale| matches!(scale, Scale::Doublings(_)));
        let is_below = |point: &Vec<f64>| Measure::Plane.of(point) < 1.0 - 1e-9;
        // In a cube the extremes lie on the plane; only a point truly below it is a knee.
        let measure = match is_absolute || points.iter().any(is_below) {
            true => Measure::Plane,
            false => Measure::Corner,
        };
        Self { points, measure }
    }

    /// Points on the front.
    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    /// Index of the knee.
    pub(super) fn knee(&self) -> usize {
        self.least(|point| self.measure.of(point))
    }

    /// Index of the first point with the least `key`.
    pub(super) fn least(&self, key: impl Fn(&[f64]) -> f64) -> usize {
        let keys: Vec<f64> = self.points.iter().map(|point| key(point)).collect();
        let least = (0..keys.len()).min_by(|a, b| keys[*a].total_cmp(&keys[*b]));
        least.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::trial;
    use peft_tune_core::objective::{LOSS_BEFORE, Objective, PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::{Params, TrialState};

    fn problem() -> Problem {
        Problem {
            space: SearchSpace::default(),
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        }
    }

    /// Throughput, memory and loss; 3 nats before the training.
    fn history(rows: &[(f64, f64, f64)]) -> Vec<Trial> {
        let row = |(number, (throughput, memory, loss)): (usize, &(f64, f64, f64))| {
            let metrics = [
                (THROUGHPUT, *throughput),
                (PEAK_MEMORY, *memory),
                (LOSS, *loss),
                (LOSS_BEFORE, 3.0),
            ];
            trial(
                number,
                Params::new(),
                TrialState::Complete {
                    metrics: metrics.into(),
                },
            )
        };
        rows.iter().enumerate().map(row).collect()
    }

    fn knee(history: &[Trial]) -> u64 {
        let preference = crate::Preference {
            rule: crate::Rule::Knee,
            ..Default::default()
        };
        let chosen = crate::recommend(&problem(), history, &preference).unwrap();
        chosen.trial.number.0
    }

    /// The best gains 1 nat, so that 2.05 is the most that counts. What loses 0.3% of the loss and costs a third less is the
    /// knee, whether or not a trial near that limit was found.
    #[test]
    fn one_training_more_does_not_move_the_knee() {
        let rows = [
            (90.0, 10.0, 2.0),
            (60.0, 11.0, 1.9999),
            (85.0, 6.0, 2.006),
            (40.0, 4.0, 2.045),
        ];
        assert_eq!(knee(&history(&rows)), 2);
        assert_eq!(knee(&history(&rows[..3])), 2);
    }

    #[test]
    fn the_knee_is_no_farther_than_itself_and_another_is_by_its_measure() {
        let all = history(&[(90.0, 12.0, 2.0), (45.0, 3.0, 2.01), (500.0, 2.0, 2.2)]);
        let beyond = |number: usize| beyond_knee(&problem(), &all, &all[number]).unwrap();
        assert_eq!(knee(&all), 1);
        assert_eq!(beyond(1), 0.0);
        // 0 + 2 + 0 against 1 + 0 + 0.2.
        assert!((beyond(0) - 0.8).abs() < 1e-9, "{}", beyond(0));
        // By three times 0.05 beyond the loss that counts, however cheap.
        assert!((beyond(2) - 3.0).abs() < 1e-9, "{}", beyond(2));
        assert_eq!(beyond_knee(&problem(), &[], &all[0]), None);
    }
}
