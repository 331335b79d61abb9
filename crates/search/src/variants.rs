//! Variants of trained settings: the same loss at another cost.
//!
//! Once a setting is trained, its loss is known for every micro-batch and every activation checkpointing too. What they
//! cost is predicted within a few percent, so that only those are worth measuring that would be recommended, or that lie
//! on the front and add to its volume.

use std::collections::BTreeMap;

use super::history::{evaluated, pareto_front};
use super::hypervolume::{contribution, hypervolume};
use super::loss_margins::NEAR_BEST_LOSS;
use super::measured_prior::MeasuredPrior;
use super::recommend::{Preference, Rule, recommend};
use super::reference_point::reference_point;
use super::{Prior, Problem};
use peft_tune_core::objective::{LOSS, Objective};
use peft_tune_core::space::{Parameter, SearchSpace};
use peft_tune_core::study::{Metrics, ParamValue, Params, Trial, TrialNumber, TrialState};

/// Values of a parameter that are tried as variants; longer lists are left out.
const MOST_VALUES: u64 = 16;
/// Variants of one training.
const MOST_VARIANTS: usize = 64;
/// Share of the front's volume that a variant has to add.
const WORTH_MEASURING: f64 = 0.002;

/// The variant of a trained setting to measure next; `None` where none would change what the study says. The order: what
/// would be recommended (by default, with the least loss, least memory or another objective's best at nearly the best loss,
/// and as the knee), then what adds most to the front.
pub fn next_variant(problem: &Problem, history: &[Trial], prior: &dyn Prior) -> Option<Params> {
    let loss = problem
        .objectives
        .iter()
        .position(|objective| objective.metric == LOSS)?;
    let prior = MeasuredPrior::new(problem, history, prior);
    let expected = expected_variants(problem, history, &prior);
    if expected.is_empty() {
        return None;
    }
    let first = history.iter().map(|trial| trial.number.0 + 1).max().unwrap_or(0);
    let mut all = history.to_vec();
    all.extend(
        expected
            .into_iter()
            .zip(first..)
            .map(|((params, metrics), number)| Trial {
                number: TrialNumber(number),
                params,
                state: TrialState::Complete { metrics },
            }),
    );
    let wanted = wishes(problem).into_iter().find_map(|wish| {
        let chosen = recommend(problem, &all, &wish).ok()?.trial;
        (chosen.number.0 >= first).then(|| chosen.params.clone())
    });
    if wanted.is_some() {
        return wanted;
    }
    let measured = evaluated(problem, history);
    let reference = reference_point(problem, &measured);
    let values: Vec<Vec<f64>> = measured
        .into_iter()
        .filter(|one| one.is_feasible())
        .map(|one| one.values)
        .collect();
    let least = WORTH_MEASURING * hypervolume(&values, &reference);
    let gain = |values_of: &[f64]| contribution(values_of, &values, &reference);
    let front = pareto_front(problem, &all).into_iter();
    let open = front.filter(|one| one.trial.number.0 >= first && one.values[loss] < reference[loss]);
    open.map(|one| (gain(&one.values), one.trial.params.clone()))
        .filter(|(gain, _)| *gain > least)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, params)| params)
}

/// Preferences that people may ask a study for.
fn wishes(problem: &Problem) -> Vec<Preference> {
    let others = problem.objectives.iter().filter(|objective| objective.metric != LOSS);
    let near = others.map(|objective| Preference {
        rule: Rule::Prefer(objective.metric.clone()),
        slack: vec![(LOSS.to_owned(), NEAR_BEST_LOSS)],
        ..Default::default()
    });
    let mut wishes = vec![Preference::default()];
    wishes.extend([Rule::Prefer(LOSS.to_owned()), Rule::Knee].map(|rule| Preference {
        rule,
        ..Default::default()
    }));
    wishes.extend(near);
    wishes
}

/// The untried variants of complete trials that are expected to keep every constraint, with the metrics expected of them.
fn expected_variants(problem: &Problem, history: &[Trial], prior: &dyn Prior) -> Vec<(Params, Metrics)> {
    let mut found: BTreeMap<String, (Params, Metrics)> = BTreeMap::new();
    for one in evaluated(problem, history) {
        let Some(measured) = one.trial.state.metrics() else {
            continue;
        };
        for params in variants(&problem.space, &one.trial.params) {
            let key = format!("{params:?}");
            let is_tried = || history.iter().any(|trial| trial.params == params);
            if found.contains_key(&key) || is_tried() || prior.impossible(&params).is_some() {
                continue;
            }
            if let Some(metrics) = expected_metrics(problem, measured, &one.trial.params, &params, prior) {
                found.insert(key, (params, metrics));
            }
        }
    }
    found.into_values().collect()
}

/// What is expected of a variant: what was measured, times what the prior expects of the variant over what it expects of
/// the measured one where they can differ. `None` where the prior knows nothing of a metric that the variant can
/// change, where a constraint breaks, or where nobody can say that it is kept.
fn expected_metrics(
    problem: &Problem,
    measured: &Metrics,
    source: &Params,
    variant: &Params,
    prior: &dyn Prior,
) -> Option<Metrics> {
    let mut metrics = measured.clone();
    let objectives = problem
        .objectives
        .iter()
        .map(|objective: &Objective| objective.metric.as_str());
    let constrained = problem.constraints.iter().map(|constraint| constraint.metric.as_str());
    let parameters = problem.space.parameters.iter();
    let differing = parameters.filter(|parameter| source.get(&parameter.name) != variant.get(&parameter.name));
    let differing: Vec<&Parameter> = differing.collect();
    let is_changed = |metric: &&str| differing.iter().any(|parameter| parameter.can_change(metric));
    for metric in objectives.chain(constrained).filter(is_changed) {
        let ratio = prior.expected(variant, metric)? / prior.expected(source, metric)?;
        metrics.insert(metric, measured.value(metric)? * ratio);
    }
    let kept = problem.constraints.iter().all(|constraint| {
        let value = metrics.value(&constraint.metric);
        value.is_some_and(|value| constraint.holds(value))
    });
    kept.then_some(metrics)
}

/// All settings of the space that differ from `params` only in what changes no loss.
fn variants(space: &SearchSpace, params: &Params) -> Vec<Params> {
    varied(space, params, &|parameter| !parameter.can_change(LOSS))
}

/// All settings of the space that differ from `params` only in the parameters that may vary, at most 64 of them. A
/// parameter with more than 16 values stays as it is.
pub fn varied(space: &SearchSpace, params: &Params, may_vary: &dyn Fn(&Parameter) -> bool) -> Vec<Params> {
    let mut settings = vec![params.clone()];
    let varying = space.parameters.iter().filter(|parameter| may_vary(parameter));
    for parameter in varying.filter(|parameter| params.contains_key(&parameter.name)) {
        let Some(values) = values_of(parameter) else { continue };
        let name = parameter.name.as_str();
        settings = settings
            .iter()
            .flat_map(|params| values.iter().map(move |value| params.with(name, value.clone())))
            .take(MOST_VARIANTS)
            .collect();
    }
    settings.retain(|params| space.point_of(params).is_some());
    settings
}

fn values_of(parameter: &Parameter) -> Option<Vec<ParamValue>> {
    let count = parameter
        .distribution
        .cardinality()
        .filter(|count| *count <= MOST_VALUES)?;
    (0..count).map(|index| parameter.distribution.nth(index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, parameter, trial};
    use peft_tune_core::objective::{Bound, Constraint, PEAK_MEMORY, THROUGHPUT, TOKEN_ACCURACY};

    /// Small micro-batches take less memory, and as much time as large ones; of what is learned nothing is known.
    struct Costs;

    impl Prior for Costs {
        fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
            match metric {
                THROUGHPUT => Some(100.0),
                PEAK_MEMORY => params.get("micro_batch")?.as_f64(),
                _ => None,
            }
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }
    }

    /// The next variant of one training with a micro-batch of 8, in a study with a limit on `metric`. The training
    /// reports that where it is `measured`, and micro-batches affect these metrics.
    fn next(metric: &str, measured: Option<f64>, affects: &[&str]) -> Option<Params> {
        let mut micro_batch = parameter("micro_batch", categorical([2i64, 8]));
        micro_batch.affects = Some(affects.iter().map(|metric| (*metric).to_owned()).collect());
        let problem = Problem {
            space: SearchSpace {
                parameters: vec![micro_batch],
            },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: vec![Constraint {
                metric: metric.to_owned(),
                bound: Bound::AtLeast(0.5),
            }],
        };
        let mut metrics: Metrics = [(THROUGHPUT, 100.0), (PEAK_MEMORY, 8.0), (LOSS, 2.0)].into();
        if let Some(value) = measured {
            metrics.insert(metric, value);
        }
        let params = Params::from([("micro_batch".to_owned(), ParamValue::Int(8))]);
        let history = [trial(0, params, TrialState::Complete { metrics })];
        next_variant(&problem, &history, &Costs)
    }

    #[test]
    fn a_limit_on_what_a_variant_cannot_change_keeps_no_variant_away() {
        let costs = [THROUGHPUT, PEAK_MEMORY];
        let smaller = Params::from([("micro_batch".to_owned(), ParamValue::Int(2))]);
        assert_eq!(next(TOKEN_ACCURACY, Some(0.7), &costs), Some(smaller));
        // Not known of the training itself, or of a variant that can change it, and broken by both.
        assert_eq!(next(TOKEN_ACCURACY, None, &costs), None);
        assert_eq!(next("answers", Some(0.7), &[THROUGHPUT, PEAK_MEMORY, "answers"]), None);
        assert_eq!(next(TOKEN_ACCURACY, Some(0.4), &costs), None);
    }
}
