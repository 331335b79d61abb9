//! The trials before the first model: the middle of the space, then the Sobol sequence.
//!
//! Design note: choosing among further Sobol points the one farthest from what had failed was tried; it lowered neither the
//! failures nor the time to a front.

use crate::search::Problem;
use crate::search::encode::{Axis, Encoding};
use crate::search::sobol::{initial_design, sobol_point};
use crate::space::SearchSpace;
use crate::study::{Params, Trial};

/// The next setting of the design, or `None` where a discrete space is used up.
pub(super) fn initial(problem: &Problem, seed: u64, history: &[Trial]) -> Option<Params> {
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
    use crate::search::fixtures::{complete, continuous_space, mixed_space, problem};
    use crate::study::ParamValue;

    fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    #[test]
    fn it_starts_in_the_middle_of_every_range() {
        let params = initial(&problem(mixed_space(), 2), 9, &[]).unwrap();
        assert_eq!(number(&params, "rank"), 8.0);
        assert!((number(&params, "learning_rate") - 1e-3).abs() < 1e-12);
    }

    #[test]
    fn then_it_is_the_sobol_sequence() {
        let problem = problem(continuous_space(2), 2);
        let history = [complete(0, initial(&problem, 3, &[]).unwrap(), &[0.5, 0.5])];
        assert_eq!(
            initial(&problem, 3, &history),
            Some(problem.space.params_at(&sobol_point(1, 2, 3)))
        );
    }
}
