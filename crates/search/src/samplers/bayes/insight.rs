//! What the surrogates have learned about each parameter: how much of a metric's variation it explains, and how the metric
//! changes along it.
//!
//! Importance is the functional analysis of variance of the surrogate's mean over the whole search space, every setting
//! equally likely (Sobol indices; Saltelli et al. 2010): the *first-order* share that the parameter explains by itself and
//! the *total* share with all its interactions. Partial dependence is the surrogate's prediction with one parameter fixed,
//! averaged over the others (Friedman 2001). Both are on the scale of the metric's model: of its logarithm where that
//! explains it better.

use rayon::prelude::*;
use serde::Serialize;

use super::candidates::Candidates;
use super::effect::Effect;
use super::observations::Observations;
use super::output::Output;
use crate::encode::{Encoding, Point};
use crate::sobol::sobol_point;
use crate::{Prior, Problem};
use peft_tune_core::objective::Objective;
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{ParamValue, Trial};

/// Settings over which is averaged.
const SAMPLES: u32 = 512;
/// Places along a continuous range.
const PLACES: u32 = 17;
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
}

/// One value of the parameter: the median prediction over the other parameters, and the middle eight tenths of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectPoint {
    pub value: ParamValue,
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// How much each parameter matters for each objective of a history, objectives in the problem's order and the most important
/// parameter first: what a page or a closing line shows. Objectives with fewer than five values are left out.
pub fn importance(problem: &Problem, history: &[Trial]) -> Vec<Importance> {
    Insight::new(problem, history).importance()
}

/// Surrogates of a study's objectives, to ask about parameters.
#[derive(Clone, Debug)]
pub struct Insight {
    space: SearchSpace,
    encoding: Encoding,
    /// Objectives that have enough trials.
    outputs: Vec<(Objective, Output)>,
}

impl Insight {
    /// Fits the objectives of a history; objectives with fewer than five values are left out.
    pub fn new(problem: &Problem, history: &[Trial]) -> Self {
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(problem, &encoding, history, None);
        let no_prior: Option<&dyn Prior> = None;
        let fitted = |index: usize| {
            let data = &observations.data[index];
            let output = Output::fit(&encoding, &observations.modelled[index], data, no_prior)?;
            (data.values.len() >= LEAST_TRIALS).then(|| (problem.objectives[index].clone(), output))
        };
        let outputs: Vec<Option<_>> = (0..problem.objectives.len()).into_par_iter().map(fitted).collect();
        Self {
            space: problem.space.clone(),
            outputs: outputs.into_iter().flatten().collect(),
            encoding,
        }
    }

    /// Importance of every parameter for every objective.
    pub fn importance(&self) -> Vec<Importance> {
        self.outputs
            .iter()
            .map(|(objective, output)| self.importance_for(objective, output))
            .collect()
    }

    fn importance_for(&self, objective: &Objective, output: &Output) -> Importance {
        let dimensions = self.space.dimensions();
        let candidates = Candidates::new(&self.space, &self.encoding);
        // The two halves of one sequence in twice the dimensions are the two independent samples.
        let both: Vec<Vec<f64>> = (0..SAMPLES)
            .map(|index| sobol_point(index, 2 * dimensions, 0))
            .collect();
        let means = |units: Vec<Vec<f64>>| -> Vec<f64> {
            let points: Vec<Point> = units
                .iter()
                .map(|unit| candidates.settled(&candidates.at(unit)))
                .collect();
            output.predict_many(&points).into_iter().map(|(mean, _)| mean).collect()
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
            metric: objective.metric.clone(),
            shares,
        }
    }

    /// Every objective along one parameter; empty where the parameter is not known.
    pub fn dependence(&self, parameter: &str) -> Vec<Dependence> {
        let Some(index) = self.space.parameters.iter().position(|one| one.name == parameter) else {
            return Vec::new();
        };
        let along = |(objective, output): &(Objective, Output)| Dependence {
            metric: objective.metric.clone(),
            parameter: parameter.to_owned(),
            places: self.places(index, objective, output),
        };
        self.outputs.iter().map(along).collect()
    }

    /// How a parameter works on every objective, summed up; empty where the parameter is not known.
    pub fn effects(&self, parameter: &str) -> Vec<Effect> {
        let dependences = self.dependence(parameter);
        let both = dependences.iter().zip(&self.outputs);
        both.filter_map(|(dependence, (objective, _))| Effect::of(dependence, objective))
            .collect()
    }

    fn places(&self, index: usize, objective: &Objective, output: &Output) -> Vec<EffectPoint> {
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
        let place = |value: ParamValue| {
            let coordinate = self.encoding.coordinate(&self.space, index, &value)?;
            let points = (0..SAMPLES).map(|sample| {
                let mut candidate = candidates.at(&sobol_point(sample, self.space.dimensions(), 0));
                candidate[index] = coordinate;
                candidates.settled(&candidate)
            });
            let points: Vec<Point> = points.collect();
            let mut predicted: Vec<f64> = output
                .predict_many(&points)
                .into_iter()
                .map(|prediction| objective.minimised(output.marginal(prediction, 0.0).median()))
                .collect();
            predicted.sort_by(f64::total_cmp);
            let at = |share: f64| predicted[(share * (predicted.len() - 1) as f64).round() as usize];
            Some(EffectPoint {
                value,
                median: at(0.5),
                low: at(0.1),
                high: at(0.9),
            })
        };
        values.into_iter().filter_map(place).collect()
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
        let importance = Insight::new(&problem, &history).importance();
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
        let insight = Insight::new(&problem, &history);
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

    #[test]
    fn too_few_trials_give_no_insight() {
        let problem = problem(continuous_space(2), 2);
        assert!(Insight::new(&problem, &[]).importance().is_empty());
    }
}
