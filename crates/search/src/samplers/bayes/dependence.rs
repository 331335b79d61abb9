//! Dependence of every objective on one parameter, the other settings held, with what is not known of it.

use rayon::prelude::*;

use super::candidates::Candidates;
use super::confounding::tells_apart;
use super::contrast::{Contrasts, contrasts};
use super::effect::{Dependence, Effect, EffectPoint};
use super::insight::{Insight, Surrogate};
use super::proposal::QUANTILE;
use peft_tune_core::study::{ParamValue, Params};

/// Most places of one parameter: they are all of its values, or else evenly spaced in its scale.
const PLACES: u32 = 9;

impl Insight {
    /// The dependence of every objective on one parameter; empty where the parameter is not known.
    pub fn dependence(&self, parameter: &str) -> Vec<Dependence> {
        let Some(index) = self.space.parameters.iter().position(|one| one.name == parameter) else {
            return Vec::new();
        };
        let along =
            |surrogate: &Surrogate| Some(self.dependence_of(index, surrogate)).filter(|one| !one.places.is_empty());
        self.outputs.par_iter().filter_map(along).collect()
    }

    /// The effects of a parameter on every objective, summed up; empty where the parameter is not known.
    pub fn effects(&self, parameter: &str) -> Vec<Effect> {
        let objective = |metric: &str| self.outputs.iter().find(|one| one.objective.metric == metric);
        let dependences = self.dependence(parameter);
        let effect = |dependence: &Dependence| Effect::of(dependence, &objective(&dependence.metric)?.objective);
        dependences.iter().filter_map(effect).collect()
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
        let mut along: Vec<(ParamValue, f64)> = values
            .into_iter()
            .filter_map(|value| Some((coordinate(&value)?, value)).map(|(at, value)| (value, at)))
            .collect();
        // Where steps are wide, as at the low end of a logarithmic range, several places have one value.
        along.dedup_by(|next, before| next.1 == before.1);
        let places: Vec<f64> = along.iter().map(|(_, at)| *at).collect();
        let shift = |params: &Params| self.shift(surrogate, params);
        let found = contrasts(&surrogate.output, &candidates, index, &places, &shift);
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
            let (low, high) = (places[apart.low], places[apart.high]);
            let told = || tells_apart(self.encoding.axes(), &surrogate.points, index, low, high);
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
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::{mixed_space, problem};
    use crate::samplers::bayes::insight::tests::{history, number};
    use crate::{Prior, Problem};
    use peft_tune_core::space::{Distribution, Scale};
    use peft_tune_core::study::{Trial, TrialState};

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

    #[test]
    fn a_value_is_a_place_once() {
        let mut space = mixed_space();
        space.parameters[0].distribution = Distribution::Int {
            low: 1,
            high: 12,
            scale: Scale::Log,
            step: 1,
        };
        let problem = problem(space, 2);
        let history = history(&problem, |params| [number(params, "rank"), 1.0]);
        let insight = Insight::new(&problem, &history, None);
        let rank = &insight.dependence("rank")[0];
        let values: Vec<f64> = rank.places.iter().filter_map(|place| place.value.as_f64()).collect();
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{values:?}");
        assert_eq!((values[0], values.last().copied()), (1.0, Some(12.0)));
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
}
