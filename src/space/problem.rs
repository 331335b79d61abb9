//! A study as samplers and fronts see it.

use peft_tune_core::objective::{Constraint, Objective, PEAK_MEMORY, THROUGHPUT, is_of_target};
use peft_tune_core::space::SearchSpace;
use peft_tune_search::Problem;

use super::Study;

/// The problem of a study with these parts. Where its trials train recipes, a profile phase tells throughput and memory before any
/// training; what is predicted of another stack is known before that.
pub fn problem_of(
    space: SearchSpace,
    objectives: &[Objective],
    constraints: &[Constraint],
    trains_recipes: bool,
) -> Problem {
    let mut objectives = objectives.to_vec();
    for objective in objectives.iter_mut().filter(|_| trains_recipes) {
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
        let trains_recipes = self.backend.trains_recipes();
        problem_of(self.space.clone(), &self.objectives, &self.constraints, trains_recipes)
    }
}
