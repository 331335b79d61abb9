//! Sums over the finished trials of a study, so that thousands of them need not be looked at for each.

use std::collections::BTreeMap;

use peft_tune_core::study::Trial;
use peft_tune_search::{Problem, evaluated};

/// Number of finished trials, and the best values that they reached.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FinishedTrials {
    finished: u64,
    /// Finished trials that took their loss over from another.
    variants: u64,
    /// Best value of each objective among complete trials that keep the constraints.
    best: BTreeMap<String, f64>,
}

impl FinishedTrials {
    /// Counts trials that ended.
    pub(super) fn count(&mut self, problem: &Problem, trials: &[Trial]) {
        self.finished += trials.iter().filter(|trial| trial.state.is_finished()).count() as u64;
        self.count_best(problem, trials);
    }

    /// Counts finished trials that took their loss over.
    pub(super) fn count_variants(&mut self, variants: u64) {
        self.variants += variants;
    }

    /// Keeps the best values of trials.
    pub(super) fn count_best(&mut self, problem: &Problem, trials: &[Trial]) {
        for one in evaluated(problem, trials).iter().filter(|one| one.is_feasible()) {
            for (objective, value) in problem.objectives.iter().zip(&one.values) {
                let value = objective.minimised(*value);
                let best = self.best.entry(objective.metric.clone()).or_insert(value);
                if objective.minimised(value) < objective.minimised(*best) {
                    *best = value;
                }
            }
        }
    }

    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// Finished trials that took their loss over from another: variants, which measured a cost at most.
    pub(super) fn variants(&self) -> u64 {
        self.variants
    }

    /// Finished trials that the budget counts: all but variants.
    pub(super) fn counted(&self) -> u64 {
        self.finished.saturating_sub(self.variants)
    }

    /// Best value of each objective among complete trials that keep the constraints.
    pub(super) fn best(&self) -> &BTreeMap<String, f64> {
        &self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::{Objective, PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::{Params, TrialNumber, TrialState};

    #[test]
    fn the_best_of_each_objective_and_all_but_variants_count() {
        let problem = Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: vec![Objective::new(THROUGHPUT), Objective::new(PEAK_MEMORY)],
            constraints: Vec::new(),
        };
        let trial = |number, state| Trial {
            number: TrialNumber(number),
            params: Params::new(),
            state,
        };
        let complete = |number, throughput, memory| {
            let metrics = [(THROUGHPUT, throughput), (PEAK_MEMORY, memory)].into();
            trial(number, TrialState::Complete { metrics })
        };
        let mut finished_trials = FinishedTrials::default();
        let waiting = trial(2, TrialState::Waiting);
        finished_trials.count(&problem, &[complete(0, 100.0, 7.0), complete(1, 90.0, 5.0), waiting]);
        finished_trials.count_variants(1);
        assert_eq!((finished_trials.finished(), finished_trials.counted()), (2, 1));
        let best =
            |finished_trials: &FinishedTrials| [THROUGHPUT, PEAK_MEMORY].map(|metric| finished_trials.best()[metric]);
        assert_eq!(best(&finished_trials), [100.0, 5.0]);
        // A finished trial whose cost was measured again is no further one.
        finished_trials.count_best(&problem, &[complete(1, 120.0, 6.0)]);
        assert_eq!((finished_trials.finished(), best(&finished_trials)), (2, [120.0, 5.0]));
    }
}
