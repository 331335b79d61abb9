//! The seam between the study loop and the search methods.

use super::CandidateScore;
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial};

/// What is being searched.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub space: SearchSpace,
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
}

/// Proposes the next parameters from what has been tried so far.
pub trait Sampler: Send {
    /// Name as the space file and the database write it.
    fn name(&self) -> &'static str;

    /// Returns parameters inside the problem's space, or `None` when there is nothing left to try. The same history and
    /// seed give the same answer: what a sampler needs to know it derives from the history (trials still running
    /// included), so that a resumed study continues as if it had never stopped.
    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params>;

    /// Whether settings are proposed for what they are expected to add to the hypervolume. A trial is then not worth its
    /// further steps where they would add more elsewhere.
    fn weighs_gains(&self) -> bool {
        false
    }

    /// Whether proposals follow the best trials, so that a range is widened where those sit on its edge. A design of the whole
    /// range, such as a grid, stays what it is.
    fn follows_best(&self) -> bool {
        false
    }

    /// Metrics of the history that are read beside those of objectives and constraints.
    fn reads(&self) -> Vec<&str> {
        Vec::new()
    }

    /// What [`Sampler::ask`] returns, and then `others`, each with what is expected of it; the setting alone where the sampler
    /// expects nothing: it has no model, or not enough trials for one. `None` when there is nothing left to try.
    fn choose(
        &mut self,
        problem: &Problem,
        history: &[Trial],
        _others: &[Params],
    ) -> Option<Vec<(Params, Option<CandidateScore>)>> {
        let params = self.ask(problem, history)?;
        Some(vec![(params, None)])
    }
}
