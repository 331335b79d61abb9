//! The trials before the first model: the middle of the space, then the Sobol sequence.
//!
//! Design note: choosing among further Sobol points the one farthest from what had failed was tried; it lowered neither the
//! failures nor the time to a front.

use crate::encode::{Axis, Encoding};
use crate::sobol::{initial_design, sobol_point};
use crate::{Prior, Problem};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial, TrialNumber, TrialState};

/// Points of the design that are skipped, certain to fail, before one of them is taken after all.
const MOST_PASSED: usize = 256;

/// The next setting of the design that is not certain to fail, or the first one where all looked at are; `None` where a
/// discrete space is used up.
pub(super) fn initial(problem: &Problem, seed: u64, history: &[Trial], prior: Option<&dyn Prior>) -> Option<Params> {
    let first = point_of_design(problem, seed, history)?;
    let Some(prior) = prior else {
        return Some(first);
    };
    let (mut passed, mut next) = (history.to_vec(), Some(first.clone()));
    for _ in 0..MOST_PASSED {
        let Some(params) = next else { break };
        if prior.impossible(&params).is_none() {
            return Some(params);
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
