//! A low-discrepancy sequence: a random search without clumps and holes.

use crate::sobol::initial_design;
use crate::{Problem, Sampler};
use peft_tune_core::study::{Params, Trial};

/// Proposes the points of an Owen-scrambled Sobol sequence (Burley 2020) in order, passing over those tried before.
#[derive(Clone, Debug)]
pub struct Sobol {
    seed: u64,
}

impl Sobol {
    /// A sampler whose scramble follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Sampler for Sobol {
    fn name(&self) -> &'static str {
        "sobol"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        initial_design(&problem.space, self.seed, history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, drive, mixed_states, problem};

    #[test]
    fn it_tries_a_discrete_space_once_and_stops() {
        let problem = problem(conditional_space(), 2);
        assert_eq!(drive(&mut Sobol::new(1), &problem, 100, mixed_states).len(), 9);
    }
}
