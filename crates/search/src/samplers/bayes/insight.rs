//! What the surrogates have learned about each parameter: how much of a metric's variation it explains, and how the metric
//! changes along it.
//!
//! Importance is the functional analysis of variance of the surrogate's mean over the whole search space, every setting
//! equally likely (Sobol indices; Saltelli et al. 2010): the *first-order* share that the parameter explains by itself and
//! the *total* share with all its interactions. It is on the scale of the metric's model: of its logarithm where that
//! explains it better. How a metric changes along a parameter is in `dependence`. What a prior predicts of a metric is part
//! of both, so that they say what the prior says where trials have nothing to add.

use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;

use super::candidates::Candidates;
use super::observations::{Modelled, Observations};
use super::output::Output;
use crate::encode::{Encoding, Point};
use crate::sobol::sobol_point;
use crate::{Predicted, Prior, Problem};
use peft_tune_core::objective::Objective;
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial};

/// Settings over which is averaged.
const SAMPLES: u32 = 512;
/// Fewest trials that are worth an analysis.
const LEAST_TRIALS: usize = 5;

/// Shares of one objective that each parameter explains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Importance {
    pub metric: String,
    /// Shares of the parameters, one for each, the largest total first.
    pub shares: Vec<Share>,
}

/// Shares of a metric's variance, in [0, 1].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    pub parameter: String,
    /// Explained by the parameter alone.
    pub first: f64,
    /// Explained with all interactions.
    pub total: f64,
}

/// Importance of each parameter for each objective of a history, objectives in the problem's order and the most
/// important parameter first: what a page or a closing line shows. Objectives with fewer than five values are left out.
pub fn importance(problem: &Problem, history: &[Trial], prior: Option<Arc<dyn Prior>>) -> Vec<Importance> {
    Insight::new(problem, history, prior).importance()
}

/// Surrogates of a study's objectives, to ask about parameters.
#[derive(Clone)]
pub struct Insight {
    pub(super) space: SearchSpace,
    pub(super) encoding: Encoding,
    prior: Option<Arc<dyn Prior>>,
    /// Objectives that have enough trials.
    pub(super) outputs: Vec<Surrogate>,
}

/// An objective with its surrogate.
#[derive(Clone, Debug)]
pub(super) struct Surrogate {
    pub(super) objective: Objective,
    modelled: Modelled,
    pub(super) output: Output,
    /// Points at which the objective was measured.
    pub(super) points: Vec<Point>,
}

impl fmt::Debug for Insight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Insight")
            .field("space", &self.space)
            .field("prior", &self.prior.is_some())
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

impl Insight {
    /// Fits the objectives of a history, what a prior predicts taken off; objectives with fewer than five values are left
    /// out.
    pub fn new(problem: &Problem, history: &[Trial], prior: Option<Arc<dyn Prior>>) -> Self {
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(problem, &encoding, history, None);
        let known = prior.as_deref().map(|prior| prior as &dyn Prior);
        let fitted = |index: usize| {
            let data = &observations.data[index];
            let output = Output::fit(&encoding, &observations.modelled[index], data, known)?;
            (data.values.len() >= LEAST_TRIALS).then(|| Surrogate {
                objective: problem.objectives[index].clone(),
                modelled: observations.modelled[index].clone(),
                points: data.points.clone(),
                output,
            })
        };
        let outputs: Vec<Option<_>> = (0..problem.objectives.len()).into_par_iter().map(fitted).collect();
        Self {
            space: problem.space.clone(),
            outputs: outputs.into_iter().flatten().collect(),
            encoding,
            prior,
        }
    }

    /// Importance of every parameter for every objective.
    pub fn importance(&self) -> Vec<Importance> {
        self.outputs
            .iter()
            .map(|surrogate| self.importance_for(surrogate))
            .collect()
    }

    fn importance_for(&self, surrogate: &Surrogate) -> Importance {
        let dimensions = self.space.dimensions();
        let candidates = Candidates::new(&self.space, &self.encoding);
        // The two halves of one sequence in twice the dimensions are the two independent samples.
        let both: Vec<Vec<f64>> = (0..SAMPLES)
            .map(|index| sobol_point(index, 2 * dimensions, 0))
            .collect();
        let means = |units: Vec<Vec<f64>>| -> Vec<f64> {
            let candidates_at: Vec<Point> = units.iter().map(|unit| candidates.at(unit)).collect();
            let points: Vec<Point> = candidates_at.iter().map(|one| candidates.settled(one)).collect();
            let predictions = surrogate.output.predict_many(&points).into_par_iter();
            predictions
                .zip(&candidates_at)
                .map(|(prediction, candidate)| {
                    let shift = self.shift(surrogate, &candidates.params(candidate)).unwrap_or(0.0);
                    surrogate.output.marginal(prediction, shift).mean
                })
                .collect()
        };
        let first = means(both.iter().map(|unit| unit[..dimensions].to_vec()).collect());
        let second = means(both.iter().map(|unit| unit[dimensions..].to_vec()).collect());
        let all = || first.iter().chain(&second);
        let mean = all().sum::<f64>() / f64::from(2 * SAMPLES);
        let variance = all().map(|value| (value - mean).powi(2)).sum::<f64>() / f64::from(2 * SAMPLES);
        let share = |index: usize| {
            let exchanged = both.iter().map(|unit| {
                let mut mixed = unit[..dimensions].to_vec();
                mixed[index] = unit[dimensions + index];
                mixed
            });
            let mixed = means(exchanged.collect());
            let (mut alone, mut total) = (0.0, 0.0);
            for ((first, second), mixed) in first.iter().zip(&second).zip(&mixed) {
                alone += (second - mean) * (mixed - first);
                total += 0.5 * (first - mixed).powi(2);
            }
            let of_variance = |sum: f64| {
                let share = sum / f64::from(SAMPLES) / variance;
                if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
            };
            Share {
                parameter: self.space.parameters[index].name.clone(),
                first: of_variance(alone),
                total: of_variance(total),
            }
        };
        let mut shares: Vec<Share> = (0..dimensions).map(share).collect();
        shares.sort_by(|a, b| b.total.total_cmp(&a.total));
        Importance {
            metric: surrogate.objective.metric.clone(),
            shares,
        }
    }

    /// Predictions of every objective of a setting, each with the interval that holds it with probability 0.9; empty
    /// where the setting is not in the space.
    pub fn predict(&self, params: &Params) -> Vec<Predicted> {
        let Some(point) = self.encoding.point(&self.space, params) else {
            return Vec::new();
        };
        let one = |surrogate: &Surrogate| {
            let shift = self.shift(surrogate, params)?;
            let marginal = surrogate.output.marginal_at(&point, shift);
            Some(Predicted::of(&surrogate.objective, &marginal))
        };
        self.outputs.iter().filter_map(one).collect()
    }

    /// The prior's shift of a surrogate at a setting: 0 where it has none, `None` where the setting cannot be predicted.
    pub(super) fn shift(&self, surrogate: &Surrogate, params: &Params) -> Option<f64> {
        match self.prior.as_deref().filter(|_| surrogate.output.is_shifted()) {
            Some(prior) => surrogate.modelled.prior_shift(prior, params),
            None => Some(0.0),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fixtures::{continuous_space, drive, problem};
    use crate::{Random, Sampler};
    use peft_tune_core::study::{ParamValue, Params, TrialState};

    pub(in crate::samplers::bayes) fn history(problem: &Problem, evaluate: impl Fn(&Params) -> [f64; 2]) -> Vec<Trial> {
        let sampler: &mut dyn Sampler = &mut Random::new(1);
        drive(sampler, problem, 40, |_, params| {
            let [f0, f1] = evaluate(params);
            TrialState::Complete {
                metrics: [("f0", f0), ("f1", f1)].into(),
            }
        })
    }

    pub(in crate::samplers::bayes) fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    /// f = 4 x0 + x1 and g = x0 x1 have known indices: 16/17 and 1/17; each 3/7 alone and 4/7 in total.
    #[test]
    fn shares_match_the_closed_form() {
        let problem = problem(continuous_space(3), 2);
        let history = history(&problem, |params| {
            let (a, b) = (number(params, "x0"), number(params, "x1"));
            [4.0 * a + b, a * b]
        });
        let importance = Insight::new(&problem, &history, None).importance();
        let share = |metric: usize, name: &str| {
            let found = importance[metric]
                .shares
                .iter()
                .find(|share| share.parameter == name)
                .unwrap();
            (found.first, found.total)
        };
        let close = |(first, total): (f64, f64), expected: (f64, f64)| {
            assert!(
                (first - expected.0).abs() < 0.06 && (total - expected.1).abs() < 0.06,
                "{first} {total} {expected:?}"
            );
        };
        close(share(0, "x0"), (16.0 / 17.0, 16.0 / 17.0));
        close(share(0, "x1"), (1.0 / 17.0, 1.0 / 17.0));
        close(share(1, "x0"), (3.0 / 7.0, 4.0 / 7.0));
        close(share(0, "x2"), (0.0, 0.0));
        assert_eq!(importance[0].shares[0].parameter, "x0");
    }

    #[test]
    fn a_setting_is_predicted_with_its_interval() {
        let problem = problem(continuous_space(2), 2);
        let history = history(&problem, |params| [3.0 + number(params, "x0"), 1.0]);
        let insight = Insight::new(&problem, &history, None);
        let at = [("x0".to_owned(), 0.5.into()), ("x1".to_owned(), 0.5.into())].into();
        let predicted = &insight.predict(&at)[0];
        assert!((predicted.median - 3.5).abs() < 0.1, "{predicted:?}");
        assert!(predicted.low <= predicted.median && predicted.median <= predicted.high);
        assert!(insight.predict(&Params::new()).is_empty());
    }

    #[test]
    fn too_few_trials_give_no_insight() {
        let problem = problem(continuous_space(2), 2);
        assert!(Insight::new(&problem, &[], None).importance().is_empty());
    }
}
