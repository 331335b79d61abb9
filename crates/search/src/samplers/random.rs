//! Uniform random search.

use crate::seeded::{Stream, Tried, first_untried, generator, uniform_point};
use crate::{Problem, Sampler};
use peft_tune_core::study::{Params, Trial};

/// Draws every parameter independently, uniformly in its scale.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
}

impl Random {
    /// A sampler whose draws follow from `seed` and the number of trials in the history.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Sampler for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        let space = &problem.space;
        let mut random = generator(self.seed, Stream::Random, history.len());
        first_untried(space, &Tried::new(history), &mut random, |random| {
            space.params_at(&uniform_point(space.dimensions(), random))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, drive, mixed_states, problem};

    #[test]
    fn it_tries_a_discrete_space_once_and_stops() {
        let problem = problem(conditional_space(), 2);
        let history = drive(&mut Random::new(1), &problem, 100, mixed_states);
        assert_eq!(history.len(), 9);
    }
}
