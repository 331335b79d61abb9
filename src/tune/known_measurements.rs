//! Measurements of finished trials, and what they leave of a trial to run: the profile phase, the training phase, both or neither; a
//! command whole, in part or not at all.

use super::claim::Claim;
use super::decision::Decision;
use super::measured_metrics::{MeasuredMetrics, metric_key};
use super::measured_recipes::MeasuredRecipes;
use super::measurement::{Measurement, Taken};
use super::needed_metrics::{known_after, needed};
use super::whole_task::command_task;
use crate::space::{Backend, RecipeError, Study, recipe_for};
use crate::worker::Task;
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::{Params, Trial, TrialNumber};
use peft_tune_kernels::Kernels;
use peft_tune_search::Problem;

/// Share of a whole trial that a profile phase costs, roughly: enough to compare it with a training.
const PROFILE_SHARE: f64 = 0.2;
/// Share of a whole trial that a setting costs which need not run: it still takes a place in the budget, and the
/// sampler's time.
const NOTHING_SHARE: f64 = 0.1;

/// Measurements of finished trials that others need not make again.
#[derive(Debug)]
pub(super) enum KnownMeasurements {
    Recipes(Box<MeasuredRecipes>),
    Command(MeasuredMetrics),
}

impl KnownMeasurements {
    pub(super) fn new(study: &Study) -> Self {
        match study.backend {
            Backend::Native | Backend::Trl(_) => Self::Recipes(Box::new(MeasuredRecipes::of(&study.plan))),
            Backend::Command(_) => Self::Command(MeasuredMetrics::default()),
        }
    }

    /// Keeps what a finished trial measured in a form of the ops.
    pub(super) fn learn(&mut self, study: &Study, problem: &Problem, trial: &Trial, kernels: Kernels) {
        match self {
            Self::Command(known) => known.learn(problem, trial),
            Self::Recipes(known) => {
                if let Ok(recipe) = recipe_for(study, &trial.params) {
                    known.learn(trial, &recipe, kernels);
                }
            }
        }
    }

    /// Keeps that a trial under way has measured its cost in a form of the ops.
    pub(super) fn learn_cost(&mut self, study: &Study, number: TrialNumber, kernels: Kernels, params: &Params) {
        if let (Self::Recipes(known), Ok(recipe)) = (self, recipe_for(study, params)) {
            known.learn_cost(number, &recipe, kernels);
        }
    }

    /// Forgets the cost that a trial is the source of.
    pub(super) fn forget(&mut self, number: TrialNumber) {
        if let Self::Recipes(known) = self {
            known.forget(number);
        }
    }

    /// Parts that a trial of `params` would measure, as far as they are worth waiting for where another trial measures
    /// them. What a command reports on its way costs nothing beside what it has to run for anyway.
    pub(super) fn claims(&self, study: &Study, problem: &Problem, params: &Params) -> Vec<Claim> {
        let Self::Recipes(_) = self else {
            let late = needed(problem)
                .into_iter()
                .filter(|metric| known_after(problem, metric).is_none());
            return late
                .map(|metric| Claim::Metric(metric.to_owned(), metric_key(problem, metric, params)))
                .collect();
        };
        let Ok(recipe) = recipe_for(study, params) else {
            return Vec::new();
        };
        let cost = study.plan.measure.as_ref().map(|_| Claim::Cost(recipe.cost_key()));
        let loss = study.plan.train.as_ref().map(|_| Claim::Loss(recipe.loss_key()));
        cost.into_iter().chain(loss).collect()
    }

    /// The decision on what a trial of `params` has to run in a form of the ops. A command computes as it likes.
    ///
    /// # Errors
    /// Where the params make no recipe.
    pub(super) fn decide(
        &self,
        study: &Study,
        problem: &Problem,
        params: &Params,
        kernels: Kernels,
    ) -> Result<Decision, RecipeError> {
        Ok(match self {
            Self::Command(known) => known.decide(problem, params, command_task(study, params)),
            Self::Recipes(known) => known.decide(&recipe_for(study, params)?, &study.plan, kernels),
        })
    }

    /// Values that unknown objectives of `params` cannot well end below (minimised), from stopped trials that share
    /// them.
    pub(super) fn bounds(&self, study: &Study, problem: &Problem, params: &Params) -> Vec<Option<f64>> {
        let bound = match self {
            Self::Command(_) => None,
            Self::Recipes(known) => recipe_for(study, params)
                .ok()
                .and_then(|recipe| known.loss_bound(&recipe)),
        };
        let objectives = problem.objectives.iter();
        objectives
            .map(|objective| bound.filter(|_| objective.metric == LOSS))
            .collect()
    }

    /// The share of a whole trial's cost that a trial of `params` would take in a form of the ops; infinite where it is
    /// known to fail.
    pub(super) fn share(
        &self,
        study: &Study,
        problem: &Problem,
        params: &Params,
        kernels: Kernels,
        whole_steps: Option<u64>,
    ) -> f64 {
        match self.decide(study, problem, params, kernels) {
            Err(_) | Ok(Decision::Fails { .. }) => f64::INFINITY,
            Ok(Decision::Known { .. }) => NOTHING_SHARE,
            Ok(Decision::Run { task, taken }) => match task {
                Task::Recipe { plan, .. } if plan.train.is_none() => PROFILE_SHARE,
                Task::Recipe { .. } => 1.0,
                Task::Params { .. } => command_share(problem, &taken, whole_steps),
            },
        }
    }
}

/// The share of its steps that a command has to run for metrics that it does not inherit.
fn command_share(problem: &Problem, taken: &[Taken], whole_steps: Option<u64>) -> f64 {
    let unknown = needed(problem).into_iter().filter(|metric| {
        !taken
            .iter()
            .any(|one| one.part == Measurement::Metric((*metric).to_owned()))
    });
    let after: Option<Vec<u64>> = unknown.map(|metric| known_after(problem, metric)).collect();
    match (after, whole_steps) {
        (Some(steps), Some(whole)) => {
            let last = steps.into_iter().max().unwrap_or(0) as f64;
            (NOTHING_SHARE + last / whole.max(1) as f64).min(1.0)
        }
        _ => 1.0,
    }
}
