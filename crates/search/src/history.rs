//! A history of trials seen through a problem: values to minimise, constraints kept or not.

use super::{Problem, pareto};
use peft_tune_core::objective::{Bound, Constraint};
use peft_tune_core::study::{Metrics, Trial, TrialState};

/// A complete trial that knows every objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated<'a> {
    pub trial: &'a Trial,
    /// One value an objective, in the problem's order, all to be minimised (a maximised metric has its sign changed).
    pub values: Vec<f64>,
    /// Sum over the constraints of how far each is broken, relative to its limit; 0 where all are kept.
    pub violation: f64,
}

impl Evaluated<'_> {
    /// Whether every constraint is kept.
    pub fn is_feasible(&self) -> bool {
        self.violation == 0.0
    }
}

/// The complete trials that know every objective, in the order of the history.
pub fn evaluated<'a>(problem: &Problem, history: &'a [Trial]) -> Vec<Evaluated<'a>> {
    let view = |trial: &'a Trial| {
        let TrialState::Complete { metrics } = &trial.state else {
            return None;
        };
        Some(Evaluated {
            trial,
            values: objective_values(problem, metrics)?,
            violation: violation(&problem.constraints, metrics),
        })
    };
    history.iter().filter_map(view).collect()
}

/// The trials of the Pareto front: complete, every constraint kept, dominated by no other such trial. Trials with equal
/// values are all on it. In the order of the history.
pub fn pareto_front<'a>(problem: &Problem, history: &'a [Trial]) -> Vec<Evaluated<'a>> {
    let feasible: Vec<Evaluated<'a>> = evaluated(problem, history)
        .into_iter()
        .filter(Evaluated::is_feasible)
        .collect();
    let points: Vec<&[f64]> = feasible.iter().map(|one| one.values.as_slice()).collect();
    let mut on_front = vec![false; feasible.len()];
    for index in pareto::front(&points) {
        on_front[index] = true;
    }
    let kept = feasible.into_iter().zip(on_front).filter(|(_, keep)| *keep);
    kept.map(|(one, _)| one).collect()
}

/// The objectives' values to minimise, or `None` where one is not known.
pub(super) fn objective_values(problem: &Problem, metrics: &Metrics) -> Option<Vec<f64>> {
    let objectives = problem.objectives.iter();
    objectives
        .map(|objective| Some(objective.minimised(metrics.value(&objective.metric)?)))
        .collect()
}

/// How far the constraints are broken in all; a metric that was not measured counts as broken by its whole limit, as
/// nobody can say that it keeps it.
pub(super) fn violation(constraints: &[Constraint], metrics: &Metrics) -> f64 {
    let one = |constraint: &Constraint| {
        let Some(value) = metrics.value(&constraint.metric) else {
            return 1.0;
        };
        let (excess, limit) = match constraint.bound {
            Bound::AtMost(limit) => (value - limit, limit),
            Bound::AtLeast(limit) => (limit - value, limit),
        };
        excess.max(0.0) / limit.abs().max(f64::MIN_POSITIVE)
    };
    constraints.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, out_of_memory, problem, trial};
    use peft_tune_core::study::Params;

    #[test]
    fn the_front_keeps_constraints_and_duplicates_and_drops_failures() {
        let mut problem = problem(continuous_space(1), 2);
        problem.constraints.push(Constraint {
            metric: "f0".to_owned(),
            bound: Bound::AtMost(0.8),
        });
        let history = vec![
            complete(0, Params::new(), &[0.5, 0.5]),
            complete(1, Params::new(), &[0.9, 0.1]),
            trial(2, Params::new(), out_of_memory()),
            complete(3, Params::new(), &[0.6, 0.6]),
            complete(4, Params::new(), &[0.5, 0.5]),
            complete(5, Params::new(), &[0.7]),
        ];
        let numbers: Vec<u64> = pareto_front(&problem, &history)
            .iter()
            .map(|one| one.trial.number.0)
            .collect();
        assert_eq!(numbers, [0, 4]);
        assert_eq!(evaluated(&problem, &history).len(), 4);
    }
}
