//! The Bayesian sampler: what it is told before it starts.

use std::fmt;
use std::sync::Arc;

use super::earlier::BEFORE_MODEL;
use crate::{CandidateScore, Prior, Problem, Sampler};
use peft_tune_core::study::{Params, Trial, TrialState};

/// Trials before the first model. Peers take ten or more; with these priors the first models are better guides than
/// further trials at random already.
const INITIAL: usize = 6;

/// Trials before the first model with a prior, which leaves the loss alone to be learned: the first training, which
/// usually is what people would have used, and one that makes it a model, a step towards what learns more where there is one.
/// What further trials at random teach, steps from the best one teach sooner.
pub(super) const INITIAL_WITH_PRIOR: usize = 2;

/// Proposes the setting with the highest expected hypervolume improvement.
#[derive(Clone)]
pub struct Bayes {
    pub(super) seed: u64,
    /// Trials before the first model, where it is said.
    pub(super) initial: Option<usize>,
    pub(super) prior: Option<Arc<dyn Prior>>,
    /// Metric that says what a trial costs.
    pub(super) cost: Option<String>,
    /// Complete and stopped trials of earlier studies, with params of this space.
    pub(super) earlier: Vec<Trial>,
}

impl fmt::Debug for Bayes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Bayes")
            .field("seed", &self.seed)
            .field("initial", &self.initial)
            .field("prior", &self.prior.is_some())
            .field("cost", &self.cost)
            .field("earlier", &self.earlier.len())
            .finish()
    }
}

impl Bayes {
    /// A sampler whose initial design and search follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            initial: None,
            prior: None,
            cost: None,
            earlier: Vec::new(),
        }
    }

    /// Takes trials of earlier studies as further observations, with a bias and a noise of their own that this study's trials
    /// decide, and begins with settings of their front. Params outside the space say nothing.
    #[must_use]
    pub fn with_earlier(mut self, trials: Vec<Trial>) -> Self {
        self.earlier = trials;
        self
    }

    /// Learns only what measurements add to a prior's predictions, and never proposes what it calls impossible.
    #[must_use]
    pub fn with_prior(mut self, prior: Arc<dyn Prior>) -> Self {
        self.prior = Some(prior);
        self
    }

    /// Starts with so many settings of the initial design.
    #[must_use]
    pub fn with_initial(mut self, trials: usize) -> Self {
        self.initial = Some(trials);
        self
    }

    /// Whether the initial design continues. A trial of it that was stopped early cost little and taught little: for
    /// each there is another, up to twice the design.
    pub(super) fn is_initial(&self, history: &[Trial]) -> bool {
        if !self.earlier.is_empty() {
            return history.len() < self.initial.map_or(BEFORE_MODEL, |trials| trials.min(BEFORE_MODEL));
        }
        let stopped = |trial: &&Trial| matches!(trial.state, TrialState::Pruned { .. });
        let design = self.design();
        let early = history.iter().take(2 * design).filter(stopped).count();
        history.len() < design + early.min(design)
    }

    /// Trials before the first model.
    fn design(&self) -> usize {
        let usual = if self.prior.is_some() {
            INITIAL_WITH_PRIOR
        } else {
            INITIAL
        };
        self.initial.unwrap_or(usual)
    }

    /// Weighs proposals by the predicted value of a metric such as the trial's wall time.
    #[must_use]
    pub fn per_cost(mut self, metric: impl Into<String>) -> Self {
        self.cost = Some(metric.into());
        self
    }
}

impl Sampler for Bayes {
    fn name(&self) -> &'static str {
        "bayes"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        self.propose(problem, history).map(|proposal| proposal.params)
    }

    fn reads(&self) -> Vec<&str> {
        self.cost.as_deref().into_iter().collect()
    }

    fn follows_best(&self) -> bool {
        true
    }

    fn weighs_gains(&self) -> bool {
        true
    }

    fn choose(
        &mut self,
        problem: &Problem,
        history: &[Trial],
        others: &[Params],
    ) -> Option<Vec<(Params, Option<CandidateScore>)>> {
        let (proposal, scores) = self.propose_beside(problem, history, others)?;
        let own = proposal.log_acquisition.map(|log_acquisition| CandidateScore {
            expected_improvement: proposal.expected_improvement.unwrap_or(0.0),
            log_acquisition,
            predicted: match proposal.tests_predictions {
                true => Vec::new(),
                false => proposal.predicted.clone(),
            },
        });
        let others = others.iter().cloned().zip(scores.into_iter().map(Some));
        Some(std::iter::once((proposal.params, own)).chain(others).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::fixtures::{drive, mixed_space, mixed_states, problem};
    use peft_tune_core::study::Metrics;

    #[test]
    fn a_stopped_trial_of_the_initial_design_is_made_up_for() {
        let problem = problem(mixed_space(), 2);
        let mut history = drive(&mut Random::new(1), &problem, 8, mixed_states);
        let sampler = Bayes::new(1);
        assert!(sampler.is_initial(&history[..5]) && !sampler.is_initial(&history[..6]));
        for trial in &mut history[1..4] {
            trial.state = TrialState::Pruned {
                at_step: 5,
                rule: "dominance".to_owned(),
                metrics: Metrics::default(),
            };
        }
        assert!(sampler.is_initial(&history));
        history.extend(drive(&mut Random::new(2), &problem, 1, mixed_states));
        assert!(!sampler.is_initial(&history));
    }
}
