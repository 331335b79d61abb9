//! A prior with what trials side by side have taught of values whose costs it does not tell.
//!
//! f(v) = exp(mean over pairs of (ln(m/p) of the trial with v - ln(m/p) of the trial with u))
//!
//! | symbol | meaning |
//! |---|---|
//! | m, p | a metric as a trial measured it, and as the prior expects it |
//! | u, v | the value of a setting that most trials have, and another one |
//! | pairs | trials with v and with u that differ in nothing else |
//! | f(v) | factor on what is expected with v |

use super::untold_costs::{costs_changed_by, differ_only_in, error, untold};
use super::{Prior, Problem};
use peft_tune_core::space::Parameter;
use peft_tune_core::study::{ParamValue, Params, Trial};

/// A prior, corrected where it does not tell values apart that trials have told apart.
pub(super) struct MeasuredPrior<'a> {
    prior: &'a dyn Prior,
    learned: Vec<Learned>,
}

/// A factor on what is expected of a metric with one value of a parameter.
struct Learned {
    parameter: String,
    value: ParamValue,
    metric: String,
    factor: f64,
}

impl<'a> MeasuredPrior<'a> {
    /// What a history teaches about a prior.
    pub(super) fn new(problem: &Problem, history: &[Trial], prior: &'a dyn Prior) -> Self {
        let untold = untold(problem, history, prior).into_iter();
        let learned = untold.flat_map(|parameter| learned(problem, parameter, history, prior));
        Self {
            prior,
            learned: learned.collect(),
        }
    }
}

impl Prior for MeasuredPrior<'_> {
    fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
        let expected = self.prior.expected(params, metric)?;
        let has_value = |one: &Learned| params.get(&one.parameter).is_some_and(|own| own.is_same(&one.value));
        let is_of = |one: &&Learned| one.metric == metric && has_value(one);
        let learned = self.learned.iter().filter(is_of);
        Some(learned.fold(expected, |expected, one| expected * one.factor))
    }

    fn impossible(&self, params: &Params) -> Option<String> {
        self.prior.impossible(params)
    }

    fn learns_alike(&self, one: &Params, other: &Params) -> bool {
        self.prior.learns_alike(one, other)
    }

    fn models(&self, parameter: &str) -> bool {
        self.prior.models(parameter)
    }
}

/// The factors that pairs of trials teach of a parameter's values.
fn learned(problem: &Problem, parameter: &Parameter, history: &[Trial], prior: &dyn Prior) -> Vec<Learned> {
    let name = parameter.name.as_str();
    let values = values_by_trials(history, name);
    let Some((&usual, others)) = values.split_first() else {
        return Vec::new();
    };
    let of = |value: &ParamValue| {
        let having = history
            .iter()
            .filter(|trial| trial.params.get(name).is_some_and(|own| own.is_same(value)));
        having.collect::<Vec<&Trial>>()
    };
    let with_usual = of(usual);
    let mut all = Vec::new();
    for value in others.iter().copied() {
        let with_value = of(value);
        for objective in costs_changed_by(problem, parameter) {
            let metric = objective.metric.as_str();
            let pairs = with_value.iter().flat_map(|own| {
                let beside = with_usual
                    .iter()
                    .filter(move |other| differ_only_in(name, &own.params, &other.params));
                beside.filter_map(move |other| Some(error(own, metric, prior)? - error(other, metric, prior)?))
            });
            let differences: Vec<f64> = pairs.collect();
            if !differences.is_empty() {
                let mean = differences.iter().sum::<f64>() / differences.len() as f64;
                all.push(Learned {
                    parameter: name.to_owned(),
                    value: value.clone(),
                    metric: metric.to_owned(),
                    factor: mean.exp(),
                });
            }
        }
    }
    all
}

/// Values of a parameter that trials have, the one that most have first; of equals the one that came first.
fn values_by_trials<'a>(history: &'a [Trial], name: &str) -> Vec<&'a ParamValue> {
    let mut counts: Vec<(&ParamValue, usize)> = Vec::new();
    for value in history.iter().filter_map(|trial| trial.params.get(name)) {
        match counts.iter_mut().find(|(known, _)| known.is_same(value)) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    counts.sort_by(|(_, a), (_, b)| b.cmp(a));
    counts.into_iter().map(|(value, _)| value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, parameter, trial};
    use peft_tune_core::objective::{LOSS, Objective, PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::{Metrics, TrialState, mark_disturbed};

    /// Ten tokens a second for each rank, whatever the kernels.
    struct Alike;

    impl Prior for Alike {
        fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
            match metric {
                THROUGHPUT => Some(10.0 * params.get("rank")?.as_f64()?),
                PEAK_MEMORY => Some(100.0),
                _ => None,
            }
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }
    }

    fn setting(rank: i64, kernels: &str) -> Params {
        let both = [("rank".to_owned(), rank.into()), ("kernels".to_owned(), kernels.into())];
        both.into_iter().collect()
    }

    fn measured(number: usize, params: Params, throughput: f64) -> Trial {
        let metrics: Metrics = [(THROUGHPUT, throughput), (PEAK_MEMORY, 110.0), (LOSS, 2.0)].into();
        trial(number, params, TrialState::Complete { metrics })
    }

    #[test]
    fn what_one_pair_teaches_holds_beside_other_values() {
        let mut kernels = parameter("kernels", categorical(["plain", "own", "other"]));
        kernels.affects = Some([THROUGHPUT, PEAK_MEMORY].map(str::to_owned).to_vec());
        let problem = Problem {
            space: SearchSpace {
                parameters: vec![parameter("rank", categorical([2i64, 4, 8])), kernels],
            },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        };
        let mut history = vec![
            measured(0, setting(2, "plain"), 16.0),
            measured(1, setting(4, "plain"), 30.0),
            measured(2, setting(4, "own"), 60.0),
            // Alone with its rank: it is beside none.
            measured(3, setting(8, "other"), 500.0),
        ];
        let expected = |history: &[Trial], kernels: &str, metric: &str| {
            let prior = MeasuredPrior::new(&problem, history, &Alike);
            prior.expected(&setting(8, kernels), metric).unwrap()
        };
        assert!((expected(&history, "own", THROUGHPUT) - 160.0).abs() < 1e-9);
        assert_eq!(expected(&history, "plain", THROUGHPUT), 80.0);
        assert_eq!(expected(&history, "other", THROUGHPUT), 80.0);
        assert!((expected(&history, "own", PEAK_MEMORY) - 100.0).abs() < 1e-9);
        // What something else slowed down teaches nothing.
        mark_disturbed(history[2].state.metrics_mut().unwrap(), 0.5);
        assert_eq!(expected(&history, "own", THROUGHPUT), 80.0);
    }
}
