//! A study as samplers and fronts see it.

use peft_tune_core::objective::{Constraint, Objective, PEAK_MEMORY, THROUGHPUT, is_of_target};
use peft_tune_core::space::SearchSpace;
use peft_tune_search::Problem;

use super::{Backend, Study};

/// The problem of a study with these parts. Where the native engine runs the trials (`is_native`), its profile phase tells throughput and
/// memory before any training; what is predicted of another stack is known before that.
pub fn problem_of(
    space: SearchSpace,
    objectives: &[Objective],
    constraints: &[Constraint],
    is_native: bool,
) -> Problem {
    let mut objectives = objectives.to_vec();
    for objective in objectives.iter_mut().filter(|_| is_native) {
        let metric = objective.metric.as_str();
        let is_measured = [THROUGHPUT, PEAK_MEMORY].contains(&metric);
        objective.known_after = (is_measured || is_of_target(metric)).then_some(0);
    }
    Problem {
        space,
        objectives,
        constraints: constraints.to_vec(),
    }
}

impl Study {
    /// The problem that the study searches.
    pub fn problem(&self) -> Problem {
        let is_native = self.backend == Backend::Native;
        problem_of(self.space.clone(), &self.objectives, &self.constraints, is_native)
    }
}
