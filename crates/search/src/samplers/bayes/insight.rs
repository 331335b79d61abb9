//! What the surrogates have learned about each parameter: how much of a metric's variation it explains, and how the metric
//! changes along it.
//!
//! Importance is the functional analysis of variance of the surrogate's mean over the whole search space, every setting
//! equally likely (Sobol indices; Saltelli et al. 2010): the *first-order* share that the parameter explains by itself and
//! the *total* share with all its interactions. It is on the scale of the metric's model: of its logarithm where that
//! explains it better. How a metric changes along a parameter is in [`contrasts`]. What a prior predicts of a metric is part
//! of both, so that they say what the prior says where trials have nothing to add.

use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;

use super::candidates::Candidates;
use super::confounding::tells_apart;
use super::contrast::{Contrasts, contrasts};
use super::effect::Effect;
use super::observations::{Modelled, Observations};
use super::output::Output;
use super::proposal::Predicted;
use crate::encode::{Encoding, Point};
use crate::sobol::sobol_point;
use crate::{Prior, Problem};
use peft_tune_core::objective::Objective;
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{ParamValue, Params, Trial};

/// Settings over which is averaged.
const SAMPLES: u32 = 512;
/// Places along a continuous range.
const PLACES: u32 = 9;
/// Standard deviations between the median and either end of an interval that holds nine tenths.
const QUANTILE: f64 = 1.645;
/// Fewest trials that are worth an analysis.
const LEAST_TRIALS: usize = 5;

/// How much of one objective each parameter explains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Importance {
    pub metric: String,
    /// One a parameter, the largest total first.
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

/// A metric along one parameter, in the metric's own unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dependence {
    pub metric: String,
    pub parameter: String,
    pub places: Vec<EffectPoint>,
    /// Whether the best and the worst place differ by more than is unknown of their difference, with probability 0.95.
    pub tells: bool,
    /// Whether a prior predicts the metric, so that trials only correct it.
    pub predicted: bool,
}

/// One value of the parameter: the metric with it, the other settings held at the same values for all, and the interval
/// that holds its difference to the parameter's other values with probability 0.9.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectPoint {
    pub value: ParamValue,
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// How much each parameter matters for each objective of a history, objectives in the problem's order and the most important
/// parameter first: what a page or a closing line shows. Objectives with fewer than five values are left out.
pub fn importance(problem: &Problem, history: &[Trial], prior: Option<Arc<dyn Prior>>) -> Vec<Importance> {
    Insight::new(problem, history, prior).importance()
}

/// Surrogates of a study's objectives, to ask about parameters.
#[derive(Clone)]
pub struct Insight {
    space: SearchSpace,
    encoding: Encoding,
    prior: Option<Arc<dyn Prior>>,
    /// Objectives that have enough trials.
    outputs: Vec<Surrogate>,
}

/// An objective with its surrogate.
#[derive(Clone, Debug)]
struct Surrogate {
    objective: Objective,
    modelled: Modelled,
    output: Output,
    /// Where it was measured.
    points: Vec<Point>,
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

    /// Every objective along one parameter; empty where the parameter is not known.
    pub fn dependence(&self, parameter: &str) -> Vec<Dependence> {
        let Some(index) = self.space.parameters.iter().position(|one| one.name == parameter) else {
            return Vec::new();
        };
        let along =
            |surrogate: &Surrogate| Some(self.dependence_of(index, surrogate)).filter(|one| !one.places.is_empty());
        self.outputs.par_iter().filter_map(along).collect()
    }

    /// How a parameter works on every objective, summed up; empty where the parameter is not known.
    pub fn effects(&self, parameter: &str) -> Vec<Effect> {
        let objective = |metric: &str| self.outputs.iter().find(|one| one.objective.metric == metric);
        let dependences = self.dependence(parameter);
        let effect = |dependence: &Dependence| Effect::of(dependence, &objective(&dependence.metric)?.objective);
        dependences.iter().filter_map(effect).collect()
    }

    /// What every objective of a setting is expected to be, each with the interval that holds it with probability 0.9; empty
    /// where the setting is not in the space.
    pub fn predict(&self, params: &Params) -> Vec<Predicted> {
        let Some(point) = self.encoding.point(&self.space, params) else {
            return Vec::new();
        };
        let one = |surrogate: &Surrogate| {
            let shift = self.shift(surrogate, params)?;
            let marginal = surrogate.output.marginal_at(&point, shift);
            let at = |z: f64| {
                surrogate
                    .objective
                    .minimised(marginal.shape.outer(marginal.mean + z * marginal.deviation))
            };
            let (a, b) = (at(-QUANTILE), at(QUANTILE));
            Some(Predicted {
                metric: surrogate.objective.metric.clone(),
                median: at(0.0),
                low: a.min(b),
                high: a.max(b),
            })
        };
        self.outputs.iter().filter_map(one).collect()
    }

    /// The prior's shift of a surrogate at a setting: 0 where it has none, `None` where the setting cannot be predicted.
    fn shift(&self, surrogate: &Surrogate, params: &Params) -> Option<f64> {
        match self.prior.as_deref().filter(|_| surrogate.output.is_shifted()) {
            Some(prior) => surrogate.modelled.prior_shift(prior, params),
            None => Some(0.0),
        }
    }

    fn dependence_of(&self, index: usize, surrogate: &Surrogate) -> Dependence {
        let candidates = Candidates::new(&self.space, &self.encoding);
        let distribution = &self.space.parameters[index].distribution;
        let values: Vec<ParamValue> = match distribution.cardinality() {
            Some(count) if count <= u64::from(PLACES) => {
                (0..count).filter_map(|number| distribution.nth(number)).collect()
            }
            _ => (0..PLACES)
                .map(|place| distribution.value_at(f64::from(place) / f64::from(PLACES - 1)))
                .collect(),
        };
        let coordinate = |value: &ParamValue| self.encoding.coordinate(&self.space, index, value);
        let along: Vec<(ParamValue, f64)> = values
            .into_iter()
            .filter_map(|value| Some((coordinate(&value)?, value)).map(|(at, value)| (value, at)))
            .collect();
        let places: Vec<f64> = along.iter().map(|(_, at)| *at).collect();
        let shift = |params: &Params| self.shift(surrogate, params);
        let found = contrasts(&surrogate.output, &candidates, (index, &places), &shift);
        let Contrasts {
            center,
            means,
            deviations,
            apart,
        } = found.unwrap_or_default();
        let outer = |inner: f64| surrogate.objective.minimised(surrogate.output.shape().outer(inner));
        let place = |((value, _), (mean, deviation)): ((ParamValue, f64), (f64, f64))| {
            let at = |z: f64| outer(center + mean + z * deviation);
            let (a, b) = (at(-QUANTILE), at(QUANTILE));
            EffectPoint {
                value,
                median: at(0.0),
                low: a.min(b),
                high: a.max(b),
            }
        };
        let tells = apart.is_some_and(|apart| {
            let ends = (places[apart.low], places[apart.high]);
            let told = || tells_apart(self.encoding.axes(), &surrogate.points, index, ends);
            apart.difference > QUANTILE * apart.deviation && (surrogate.output.is_shifted() || told())
        });
        Dependence {
            metric: surrogate.objective.metric.clone(),
            parameter: self.space.parameters[index].name.clone(),
            places: along
                .into_iter()
                .zip(means.into_iter().zip(deviations))
                .map(place)
                .collect(),
            tells,
            predicted: surrogate.output.is_shifted(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{continuous_space, drive, mixed_space, problem};
    use crate::{Random, Sampler};
    use peft_tune_core::study::{Params, TrialState};

    fn history(problem: &Problem, evaluate: impl Fn(&Params) -> [f64; 2]) -> Vec<Trial> {
        let sampler: &mut dyn Sampler = &mut Random::new(1);
        drive(sampler, problem, 40, |_, params| {
            let [f0, f1] = evaluate(params);
            TrialState::Complete {
                metrics: [("f0", f0), ("f1", f1)].into(),
            }
        })
    }

    fn number(params: &Params, name: &str) -> f64 {
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
    fn dependence_follows_the_metric_along_levels_and_ranges() {
        let problem = problem(mixed_space(), 2);
        let history = history(&problem, |params| {
            let rank = number(params, "rank");
            [rank, (number(params, "learning_rate").log10() + 3.0).powi(2)]
        });
        let insight = Insight::new(&problem, &history, None);
        let rank = &insight.dependence("rank")[0];
        let medians: Vec<f64> = rank.places.iter().map(|place| place.median.round()).collect();
        assert_eq!(medians, [4.0, 8.0, 16.0]);
        let rate = &insight.dependence("learning_rate")[1];
        let least = rate.places.iter().min_by(|a, b| a.median.total_cmp(&b.median)).unwrap();
        let least = least.value.as_f64().unwrap().log10();
        assert!((least + 3.0).abs() < 0.5, "{least}");
        assert!(
            rate.places
                .iter()
                .all(|place| place.low <= place.median && place.median <= place.high)
        );
        assert!(insight.dependence("no such").is_empty());
    }

    /// Says of `f0` what it is: 8 with the first optimizer, 4 with the second, whatever else is set.
    struct Exact;

    impl Prior for Exact {
        fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
            let first = matches!(params.get("optimizer"), Some(ParamValue::Text(name)) if &**name == "adamw");
            (metric == "f0").then(|| if first { 8.0 } else { 4.0 } * number(params, "rank"))
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }
    }

    /// One optimizer was tried with small ranks alone and the other with large ones, as a search does that drops one early.
    fn unbalanced(problem: &Problem) -> Vec<Trial> {
        let mut history = history(problem, |_| [0.0, 0.0]);
        for trial in &mut history {
            let is_first = matches!(trial.params.get("optimizer"), Some(ParamValue::Text(name)) if &**name == "adamw");
            trial
                .params
                .insert("rank".to_owned(), if is_first { 4i64 } else { 16 }.into());
            let f0 = Exact.expected(&trial.params, "f0").unwrap();
            trial.state = TrialState::Complete {
                metrics: [("f0", f0), ("f1", 1.0 + number(&trial.params, "learning_rate"))].into(),
            };
        }
        history
    }

    #[test]
    fn an_effect_agrees_with_the_prediction_however_unbalanced_the_history_is() {
        let problem = problem(mixed_space(), 2);
        let history = unbalanced(&problem);
        let insight = Insight::new(&problem, &history, Some(Arc::new(Exact)));
        let effect = &insight.effects("optimizer")[0];
        assert!(effect.predicted && effect.tells, "{effect:?}");
        assert_eq!(effect.worst, "adamw".into());
        let ratio = effect.worst_value / effect.best_value;
        assert!((ratio - 2.0).abs() < 0.02, "{ratio}");
        // Without a prediction the trials cannot say: in what was tried, the first optimizer went with less memory.
        let blind = Insight::new(&problem, &history, None);
        let effect = &blind.effects("optimizer")[0];
        assert!(!effect.predicted);
        assert!(!effect.tells || effect.worst == "adamw".into(), "{effect:?}");
    }

    #[test]
    fn what_was_not_tried_is_not_told() {
        let problem = problem(mixed_space(), 2);
        let tried = |params: &Params| number(params, "rank") < 5.0;
        let history: Vec<Trial> = history(&problem, |params| {
            [
                1.0,
                1.0 + number(params, "rank") + (1e3 * number(params, "learning_rate")).sin(),
            ]
        })
        .into_iter()
        .filter(|trial| tried(&trial.params))
        .collect();
        let insight = Insight::new(&problem, &history, None);
        let effects = insight.effects("rank");
        let effect = effects.iter().find(|one| one.metric == "f1").unwrap();
        assert!(!effect.tells, "{effect:?}");
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
