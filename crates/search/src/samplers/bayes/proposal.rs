//! The setting that a sampler proposes, with what it expects of it.

use serde::Serialize;

use super::landscape::Landscape;
use super::marginal::Marginal;
use crate::encode::Point;
use crate::{Predicted, Problem};
use peft_tune_core::objective::Objective;
use peft_tune_core::study::Params;

/// Standard deviations between the median and either end of an interval that holds nine tenths.
pub(super) const QUANTILE: f64 = 1.645;

/// A setting and why it is proposed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    pub params: Params,
    /// Natural logarithm of the acquisition: expected hypervolume improvement times the probability of success (per unit of
    /// cost, where proposals are weighed by it). `None` for the initial design.
    pub log_acquisition: Option<f64>,
    /// Expected hypervolume improvement alone, in the product of the objectives' units.
    pub expected_improvement: Option<f64>,
    /// Predicted objectives.
    pub predicted: Vec<Predicted>,
    /// Whether the setting is tried to learn if these predictions hold: a choice at a learning rate of its own. They
    /// are no reason to stop its trial.
    pub tests_predictions: bool,
}

impl Proposal {
    /// A setting of the initial design, of which nothing is expected yet.
    pub(super) fn of_design(params: Params) -> Self {
        Self {
            params,
            log_acquisition: None,
            expected_improvement: None,
            predicted: Vec::new(),
            tests_predictions: false,
        }
    }
}

impl Predicted {
    /// The prediction of an objective's value.
    pub(super) fn of(objective: &Objective, marginal: &Marginal) -> Self {
        let at = |z: f64| {
            let value = marginal.shape.outer(marginal.mean + z * marginal.deviation);
            objective.possible(objective.minimised(value))
        };
        let (a, b) = (at(-QUANTILE), at(QUANTILE));
        Self {
            metric: objective.metric.clone(),
            median: at(0.0),
            low: a.min(b),
            high: a.max(b),
        }
    }
}

/// The proposal of the setting at `point`, with what `landscape` predicts of it.
pub(super) fn described(
    problem: &Problem,
    landscape: &Landscape<'_>,
    point: &Point,
    params: Params,
    log_acquisition: f64,
) -> Proposal {
    let marginals = landscape.surrogates.marginals(point).unwrap_or_default();
    let predicted = problem
        .objectives
        .iter()
        .zip(&marginals)
        .map(|(objective, marginal)| Predicted::of(objective, marginal));
    let gain = landscape
        .ehvi
        .as_ref()
        .filter(|_| marginals.len() >= landscape.surrogates.objectives);
    Proposal {
        params,
        log_acquisition: Some(log_acquisition),
        expected_improvement: gain.map(|ehvi| ehvi.log_value(&marginals[..landscape.surrogates.objectives]).exp()),
        predicted: predicted.collect(),
        tests_predictions: false,
    }
}
