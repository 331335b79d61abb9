//! What `explain` and `report` answer of a study: read from the database, with the prediction of costs where this machine has
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cli::forecast;
use crate::report::answers::{Answers, AnswersInput};
use crate::store::{Confirmations, Store, StoreError, StudyOverview, Variants};
use peft_tune_core::space::{SearchSpace, Widening};
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Bayes, Insight, Preference, Prior, Problem, Proposal, recommend, untold_costs};

/// Proposals that say what more time would bring.
pub(super) const PROPOSALS: usize = 3;

/// A study as it is asked about.
pub(super) struct Asked {
    pub problem: Problem,
    /// Trials of the study, as they count.
    pub trials: Vec<Trial>,
    pub confirmed: Confirmations,
    pub variants: Variants,
    wall_s: BTreeMap<TrialNumber, f64>,
    prior: Option<Arc<dyn Prior>>,
    seed: u64,
    widened: Vec<Widening>,
}

/// Answers about a study.
pub(super) struct Answered {
    pub insight: Insight,
    /// Proposals that the model would try next, the best first.
    pub next: Vec<Proposal>,
    pub answers: Answers,
}

impl Asked {
    /// Reads a study.
    pub(super) async fn read(store: &Store, study: &StudyOverview) -> Result<Self, StoreError> {
        let (trials, confirmed) = store.history().confirmed_trials(study.id).await?;
        let space: Option<SearchSpace> = store.definitions().search_space(study.id).await?;
        let times = store.history().times(study.id).await?.into_iter();
        let prior = forecast::of_stored(study, store).await;
        Ok(Self {
            problem: study.problem(space),
            trials,
            confirmed,
            variants: store.inheritance().variants(study.id).await?,
            wall_s: times.filter_map(|one| Some((one.number, one.wall_s?))).collect(),
            prior: prior.map(|prior| prior as Arc<dyn Prior>),
            seed: study.seed,
            widened: store.widenings().of(study.id).await?,
        })
    }

    /// Answers, with so many proposals of what to try next.
    pub(super) fn answer(&self, next: usize) -> Answered {
        let insight = Insight::new(&self.problem, &self.trials, self.prior.clone());
        // More objectives than the model takes, or nothing to choose: nothing is proposed.
        let can_propose = !self.problem.space.parameters.is_empty() && (1..=4).contains(&self.problem.objectives.len());
        let mut sampler = Bayes::new(self.seed);
        if let Some(prior) = &self.prior {
            sampler = sampler.with_prior(prior.clone());
        }
        let next = match can_propose {
            true => sampler.propose_many(&self.problem, &self.trials, next),
            false => Vec::new(),
        };
        let prior = self.prior.as_deref();
        let untold = prior.map(|prior| untold_costs(&self.problem, &self.trials, prior));
        let recommended = recommend(&self.problem, &self.trials, &Preference::default()).ok();
        let answers = Answers::new(&AnswersInput {
            problem: &self.problem,
            trials: &self.trials,
            variants: &self.variants,
            confirmed: &self.confirmed,
            recommended: recommended.map(|chosen| chosen.trial.number),
            wall_s: &self.wall_s,
            insight: &insight,
            next: &next,
            widened: &self.widened,
            untold: &untold.unwrap_or_default(),
        });
        Answered { insight, next, answers }
    }
}
