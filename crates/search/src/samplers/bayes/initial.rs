//! The trials before the first model: the middle of the space, then the Sobol sequence, each with the fastest of the values
//! that are expected to learn alike. With a prior for the costs, the first one is followed by steps towards what learns more,
//! for as long as they pay: where there is time for eight trainings, one at random is a training less.
//!
//! Design note: choosing among further Sobol points the one farthest from what had failed was tried; it lowered neither the
//! failures nor the time to a front.

use super::step::learns_more;
use crate::encode::{Axis, Encoding};
use crate::seeded::Tried;
use crate::sobol::{initial_design, sobol_point};
use crate::{NEAR_BEST_LOSS, Prior, Problem};
use peft_tune_core::objective::{LOSS, THROUGHPUT, counted_as};
use peft_tune_core::space::{Distribution, SearchSpace};
use peft_tune_core::study::{Params, Trial, TrialNumber, TrialState};

/// Points of the design that are skipped, certain to fail, before one of them is taken after all.
const MOST_PASSED: usize = 256;
/// Steps towards what learns more that may follow each other.
const MOST_STEPS: usize = 3;

/// The next setting of the design that is not certain to fail, or the first one where all looked at are; `None` where a
/// discrete space is used up.
pub(super) fn initial(problem: &Problem, seed: u64, history: &[Trial], prior: Option<&dyn Prior>) -> Option<Params> {
    let first = point_of_design(problem, seed, history)?;
    let Some(prior) = prior else {
        return Some(first);
    };
    let tried = Tried::new(history);
    let (mut passed, mut next) = (history.to_vec(), Some(first.clone()));
    for _ in 0..MOST_PASSED {
        let Some(params) = next else { break };
        let fastest = fastest_alike(problem, prior, &params);
        if prior.impossible(&fastest).is_none() && !tried.contains(&fastest) {
            return Some(fastest);
        }
        // As if it had been tried: the design continues after it.
        passed.push(Trial {
            number: TrialNumber(passed.len() as u64),
            params,
            state: TrialState::Waiting,
        });
        next = point_of_design(problem, seed, &passed);
    }
    Some(first)
}

/// The setting a step beyond the last training towards what learns more: behind a study's first training, and for as long as
/// such steps lower the loss. `None` behind another history, where no loss is searched, and where the setting cannot be tried.
pub(super) fn stronger_than_last(problem: &Problem, prior: &dyn Prior, history: &[Trial]) -> Option<Params> {
    let (last, before) = history.split_last()?;
    if !searches_loss(problem) || before.len() >= MOST_STEPS {
        return None;
    }
    let loss = |trial: &Trial| match &trial.state {
        TrialState::Complete { metrics } => metrics.value(LOSS),
        _ => None,
    };
    let own = loss(last)?;
    let is_lower = |other: &Trial| loss(other).is_some_and(|other| own < other - NEAR_BEST_LOSS * other.abs());
    let stronger = before
        .iter()
        .all(is_lower)
        .then(|| learns_more(problem, &last.params))??;
    let stronger = fastest_alike(problem, prior, &stronger);
    (prior.impossible(&stronger).is_none() && !Tried::new(history).contains(&stronger)).then_some(stronger)
}

fn searches_loss(problem: &Problem) -> bool {
    problem.objectives.iter().any(|objective| objective.metric == LOSS)
}

/// A setting with the fastest of the values that are expected to learn as its own do: a first training that is slow for no
/// gain is a training less.
fn fastest_alike(problem: &Problem, prior: &dyn Prior, params: &Params) -> Params {
    if !searches_loss(problem) {
        return params.clone();
    }
    let speed = counted_as(THROUGHPUT, &problem.objectives);
    let expected = |params: &Params| prior.expected(params, speed).unwrap_or(0.0);
    let mut fastest = params.clone();
    for parameter in &problem.space.parameters {
        let Distribution::Categorical { choices } = &parameter.distribution else {
            continue;
        };
        if !fastest.contains_key(&parameter.name) {
            continue;
        }
        for choice in choices {
            let other = fastest.with(&parameter.name, choice.clone());
            // Predictions cost more than the question whether they matter.
            let is_alike = problem.space.point_of(&other).is_some() && prior.learns_alike(&fastest, &other);
            if is_alike && expected(&other) > expected(&fastest) {
                fastest = other;
            }
        }
    }
    fastest
}

fn point_of_design(problem: &Problem, seed: u64, history: &[Trial]) -> Option<Params> {
    if history.is_empty() {
        return Some(middle(&problem.space, seed));
    }
    initial_design(&problem.space, seed, history)
}

/// Every ordered parameter in the middle of its range, the best single guess while nothing is known; choices without an
/// order as the Sobol sequence has them.
fn middle(space: &SearchSpace, seed: u64) -> Params {
    let mut unit = sobol_point(0, space.dimensions(), seed);
    for (coordinate, axis) in unit.iter_mut().zip(Encoding::new(space).axes()) {
        if *axis == Axis::Number {
            *coordinate = 0.5;
        }
    }
    space.params_at(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, mixed_space, problem};
    use peft_tune_core::study::ParamValue;

    fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    #[test]
    fn it_starts_in_the_middle_of_every_range() {
        let params = initial(&problem(mixed_space(), 2), 9, &[], None).unwrap();
        assert_eq!(number(&params, "rank"), 8.0);
        assert!((number(&params, "learning_rate") - 1e-3).abs() < 1e-12);
    }

    #[test]
    fn then_it_is_the_sobol_sequence() {
        let problem = problem(continuous_space(2), 2);
        let history = [complete(0, initial(&problem, 3, &[], None).unwrap(), &[0.5, 0.5])];
        assert_eq!(
            initial(&problem, 3, &history, None),
            Some(problem.space.params_at(&sobol_point(1, 2, 3)))
        );
    }
}
