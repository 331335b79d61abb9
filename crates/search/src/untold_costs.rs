//! Values whose costs predictions do not tell: choices that change no loss, such as those among the kernels of another stack.
//!
//! A prior may have no model of such a setting, and then expects the same of all its values but for their memory, or one that
//! says what is computed and not how fast ([`Prior::models`]). What it expects is then no reason to pass a value over: each that
//! the study lists is measured once, beside a trial that differs in nothing else. That trial measures a cost alone, as it takes
//! the loss over.
//!
//! A value is passed over that is expected to be clearly worse in some objective, and clearly better in none: by more than
//! half, and by more than twice the deviation with which predictions have strayed from measurements. Fewer than three
//! measurements say nothing of that, so that nothing is measured so before.

use super::history::evaluated;
use super::recommend::{Preference, recommend};
use super::{Prior, Problem};
use peft_tune_core::objective::{LOSS, Objective, PEAK_MEMORY, THROUGHPUT, is_of_target};
use peft_tune_core::space::{Distribution, Parameter};
use peft_tune_core::study::{ParamValue, Params, Trial, TrialNumber, disturbed};

/// Measurements behind which predictions count as held against some.
const FEWEST: usize = 3;
/// Values of a list that are looked at. Of a range its ends are.
const MOST_VALUES: usize = 16;
/// Logarithm of the least factor by which a value is clearly worse.
const CLEARLY: f64 = 0.405;
/// Difference of logarithms below which two predictions are one.
const SAME: f64 = 1e-9;

/// A value whose cost predictions do not tell.
#[derive(Clone, Debug, PartialEq)]
pub struct UntoldCost {
    pub parameter: String,
    pub value: ParamValue,
    pub outcome: UntoldOutcome,
}

/// What became of a value whose cost predictions do not tell.
#[derive(Clone, Debug, PartialEq)]
pub enum UntoldOutcome {
    /// Tried, beside another trial that differs in nothing else.
    Tried { trial: TrialNumber, beside: TrialNumber },
    /// Passed over: expected to be so much more of a metric, as a share, than a trial with another value.
    ClearlyWorse {
        metric: String,
        change: f64,
        beside: TrialNumber,
    },
    /// Not tried yet: the setting that would.
    Open(Params),
}

/// The next setting to measure for the cost of a value that predictions do not tell; `None` where each is known or passed over.
pub fn next_untold(problem: &Problem, history: &[Trial], prior: &dyn Prior) -> Option<Params> {
    let all = untold_costs(problem, history, prior);
    all.into_iter().find_map(|one| match one.outcome {
        UntoldOutcome::Open(params) => Some(params),
        UntoldOutcome::Tried { .. } | UntoldOutcome::ClearlyWorse { .. } => None,
    })
}

/// Values whose costs predictions do not tell, in the order of the space; none before three trials are complete.
pub fn untold_costs(problem: &Problem, history: &[Trial], prior: &dyn Prior) -> Vec<UntoldCost> {
    let parameters = untold(problem, history, prior);
    if parameters.is_empty() {
        return Vec::new();
    }
    let complete = evaluated(problem, history);
    if complete.len() < FEWEST {
        return Vec::new();
    }
    let recommended = recommend(problem, history, &Preference::default()).ok();
    let feasible = complete.iter().filter(|one| one.is_feasible()).map(|one| one.trial);
    let study = Study {
        problem,
        history,
        prior,
        bases: recommended
            .map(|chosen| chosen.trial)
            .into_iter()
            .chain(feasible)
            .collect(),
    };
    let mut found = Vec::new();
    for parameter in parameters {
        for value in listed(parameter) {
            if let Some(outcome) = study.outcome(parameter, &value) {
                let parameter = parameter.name.clone();
                found.push(UntoldCost {
                    parameter,
                    value,
                    outcome,
                });
            }
        }
    }
    found
}

/// The parameters that change no loss and of whose values a prior does not tell the costs.
pub(super) fn untold<'a>(problem: &'a Problem, history: &[Trial], prior: &dyn Prior) -> Vec<&'a Parameter> {
    let is_untold = |parameter: &&Parameter| {
        let mut having = history
            .iter()
            .filter(|trial| trial.params.contains_key(&parameter.name));
        !parameter.can_change(LOSS)
            && costs_changed_by(problem, parameter).next().is_some()
            && having.next().is_some_and(|trial| {
                !prior.models(&parameter.name) || are_alike(problem, parameter, &trial.params, prior)
            })
    };
    problem.space.parameters.iter().filter(is_untold).collect()
}

/// The measured objectives that a parameter can change.
pub fn costs_changed_by<'a>(problem: &'a Problem, parameter: &'a Parameter) -> impl Iterator<Item = &'a Objective> {
    let objectives = problem.objectives.iter();
    objectives.filter(move |objective| {
        let metric = objective.metric.as_str();
        parameter.can_change(metric) && !is_of_target(metric)
    })
}

/// Whether two settings differ in the value of one parameter alone.
pub(super) fn differ_only_in(name: &str, one: &Params, other: &Params) -> bool {
    let mut both = one.iter().zip(other.iter());
    one.len() == other.len()
        && both.all(|((own, value), (others, other))| own == others && value.is_same(other) != (own == name))
}

/// Logarithm of a metric over what is expected of it; `None` where one of them is not known, or something disturbed the
/// measurement.
pub(super) fn error(trial: &Trial, metric: &str, prior: &dyn Prior) -> Option<f64> {
    let metrics = trial.state.metrics()?;
    if metric == THROUGHPUT && disturbed(metrics).is_some() {
        return None;
    }
    let error = (metrics.value(metric)? / prior.expected(&trial.params, metric)?).ln();
    error.is_finite().then_some(error)
}

/// Whether a prior expects the same cost of all values of a parameter beside these of the others. Memory is counted, and says
/// nothing of the rest.
fn are_alike(problem: &Problem, parameter: &Parameter, params: &Params, prior: &dyn Prior) -> bool {
    let mut is_predicted = false;
    for value in listed(parameter) {
        let other = params.with(&parameter.name, value);
        for objective in costs_changed_by(problem, parameter).filter(|objective| objective.metric != PEAK_MEMORY) {
            let expected = |params: &Params| prior.expected(params, &objective.metric);
            match (expected(params), expected(&other)) {
                (Some(one), Some(other)) if (one / other).ln().abs() <= SAME => is_predicted = true,
                (None, None) => {}
                _ => return false,
            }
        }
    }
    is_predicted
}

/// Values of a parameter that a study lists: the ends of a range.
fn listed(parameter: &Parameter) -> Vec<ParamValue> {
    let values = &parameter.distribution;
    match values {
        Distribution::Categorical { choices } => choices.iter().take(MOST_VALUES).cloned().collect(),
        Distribution::Int { .. } | Distribution::Float { .. } => [0.0, 1.0].map(|unit| values.value_at(unit)).into(),
    }
}

/// A study, as its values are looked at one by one.
struct Study<'a> {
    problem: &'a Problem,
    history: &'a [Trial],
    prior: &'a dyn Prior,
    /// Complete trials that keep all constraints, the recommended one first.
    bases: Vec<&'a Trial>,
}

impl Study<'_> {
    /// What became of a value; `None` where no trial can have it beside what it has.
    fn outcome(&self, parameter: &Parameter, value: &ParamValue) -> Option<UntoldOutcome> {
        if let Some((trial, beside)) = self.tried(parameter, value) {
            return Some(UntoldOutcome::Tried { trial, beside });
        }
        let (base, params) = self.bases.iter().find_map(|base| {
            let own = base.params.get(&parameter.name)?;
            let params = base.params.with(&parameter.name, value.clone());
            let is_possible =
                self.problem.space.point_of(&params).is_some() && self.prior.impossible(&params).is_none();
            (!own.is_same(value) && is_possible).then_some((base, params))
        })?;
        Some(match self.clearly_worse(parameter, &base.params, &params) {
            Some((metric, change)) => UntoldOutcome::ClearlyWorse {
                metric,
                change,
                beside: base.number,
            },
            None => UntoldOutcome::Open(params),
        })
    }

    /// The first trial with a value, however it ended, and one that differs in nothing else.
    fn tried(&self, parameter: &Parameter, value: &ParamValue) -> Option<(TrialNumber, TrialNumber)> {
        let name = parameter.name.as_str();
        let has_value = |trial: &&Trial| trial.params.get(name).is_some_and(|own| own.is_same(value));
        let mut having = self.history.iter().filter(has_value);
        having.find_map(|trial| {
            let mut others = self.history.iter();
            let beside = others.find(|other| differ_only_in(name, &trial.params, &other.params))?;
            Some((trial.number, beside.number))
        })
    }

    /// The objective in which a setting is expected to be worst beside another, with the change of its metric, where that makes it
    /// clearly worse.
    fn clearly_worse(&self, parameter: &Parameter, base: &Params, params: &Params) -> Option<(String, f64)> {
        let mut worst: Option<(f64, &Objective, f64)> = None;
        for objective in costs_changed_by(self.problem, parameter) {
            let expected = |params: &Params| self.prior.expected(params, &objective.metric);
            let (Some(own), Some(others)) = (expected(params), expected(base)) else {
                continue;
            };
            let Some(deviation) = self.deviation(&objective.metric) else {
                continue;
            };
            // A sum of logarithms, with the sign that a minimised metric has.
            let worse = objective.minimised((own / others).ln());
            let beyond = CLEARLY.max(2.0 * deviation);
            if worse < -beyond {
                return None;
            }
            if worse > beyond && worst.is_none_or(|(most, ..)| worse > most) {
                worst = Some((worse, objective, own / others - 1.0));
            }
        }
        worst.map(|(_, objective, change)| (objective.metric.clone(), change))
    }

    /// Standard deviation of the logarithm of measured over expected values of a metric, a factor that all have left out; `None` where
    /// too few are known.
    fn deviation(&self, metric: &str) -> Option<f64> {
        let errors = self.history.iter().filter_map(|trial| error(trial, metric, self.prior));
        let errors: Vec<f64> = errors.collect();
        if errors.len() < FEWEST {
            return None;
        }
        let count = errors.len() as f64;
        let mean = errors.iter().sum::<f64>() / count;
        let squares: f64 = errors.iter().map(|error| (error - mean).powi(2)).sum();
        Some((squares / (count - 1.0)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, parameter, trial};
    use crate::{Bayes, Sampler, next_variant};
    use peft_tune_core::objective::LOSS_BEFORE;
    use peft_tune_core::space::{Scale, SearchSpace};
    use peft_tune_core::study::{Metrics, TrialState, mark_disturbed};
    use std::sync::Arc;

    /// Larger micro-batches are faster and take more memory. Eager attention is expected to take a little more of both, and
    /// processes that read rows memory alone.
    struct Costs {
        /// Factor on the memory that eager attention is expected to take.
        eager: f64,
    }

    fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    fn is_eager(params: &Params) -> bool {
        params.get("attention") == Some(&"eager".into())
    }

    impl Prior for Costs {
        fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
            let rows = number(params, "micro_batch");
            match metric {
                THROUGHPUT => Some(1e4 * rows.powf(0.2) * if is_eager(params) { 0.95 } else { 1.0 }),
                PEAK_MEMORY => {
                    let readers = 1.0 + 0.01 * number(params, "readers");
                    Some(1e6 * readers * (4.0 + rows) * if is_eager(params) { self.eager } else { 1.0 })
                }
                _ => None,
            }
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }

        fn models(&self, parameter: &str) -> bool {
            parameter != "attention"
        }
    }

    /// What a trial measures: eager attention is half as fast again, and two processes that read rows cost a little.
    fn measured(params: &Params) -> Metrics {
        let prior = Costs { eager: 1.2 };
        let expected = |metric: &str| prior.expected(params, metric).unwrap();
        let readers = if number(params, "readers") > 0.0 { 0.97 } else { 1.0 };
        let eager = if is_eager(params) { 1.5 } else { 1.0 };
        let decades = (number(params, "learning_rate") / 2e-3).log10();
        [
            (THROUGHPUT, 0.8 * readers * eager * expected(THROUGHPUT)),
            (PEAK_MEMORY, 1.1 * expected(PEAK_MEMORY)),
            (LOSS, 2.0 + decades * decades),
            (LOSS_BEFORE, 5.0),
        ]
        .into()
    }

    fn problem() -> Problem {
        let costs = || Some([THROUGHPUT, PEAK_MEMORY].map(str::to_owned).to_vec());
        let rates = Distribution::Float {
            low: 1e-4,
            high: 1e-1,
            scale: Scale::Log,
            step: None,
        };
        let mut parameters = vec![
            parameter("micro_batch", categorical([2i64, 8])),
            parameter("attention", categorical(["sdpa", "eager"])),
            parameter("readers", categorical([0i64, 2])),
        ];
        parameters.iter_mut().for_each(|one| one.affects = costs());
        parameters.push(parameter("learning_rate", rates));
        Problem {
            space: SearchSpace { parameters },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        }
    }

    fn setting(micro_batch: i64, attention: &str, readers: i64, rate: f64) -> Params {
        Params::from([
            ("micro_batch".to_owned(), micro_batch.into()),
            ("attention".to_owned(), attention.into()),
            ("readers".to_owned(), readers.into()),
            ("learning_rate".to_owned(), rate.into()),
        ])
    }

    fn complete(number: usize, params: Params) -> Trial {
        let metrics = measured(&params);
        trial(number, params, TrialState::Complete { metrics })
    }

    /// Three trainings, the second of which is the best.
    fn history() -> Vec<Trial> {
        let rates = [1e-3, 2e-3, 1e-2].into_iter().enumerate();
        rates
            .map(|(number, rate)| complete(number, setting(8, "sdpa", 0, rate)))
            .collect()
    }

    #[test]
    fn each_value_is_measured_once_beside_the_recommended_trial() {
        let (problem, prior, mut history) = (problem(), Costs { eager: 1.2 }, history());
        assert_eq!(next_untold(&problem, &history[..2], &prior), None);
        let eager = next_untold(&problem, &history, &prior).unwrap();
        assert_eq!(eager, setting(8, "eager", 0, 2e-3));
        // What is under way is not measured twice.
        history.push(trial(3, eager.clone(), TrialState::Running));
        let readers = next_untold(&problem, &history, &prior).unwrap();
        assert_eq!(readers, setting(8, "sdpa", 2, 2e-3));
        history[3] = complete(3, eager);
        history.push(complete(4, readers));
        assert_eq!(next_untold(&problem, &history, &prior), None);
        let tried = untold_costs(&problem, &history, &prior);
        let of = |parameter: &str, value: ParamValue| {
            let mut all = tried.iter();
            let found = all.find(|one| one.parameter == parameter && one.value == value);
            found.map(|one| one.outcome.clone())
        };
        let (trial, beside) = (TrialNumber(3), TrialNumber(1));
        assert_eq!(
            of("attention", "eager".into()),
            Some(UntoldOutcome::Tried { trial, beside })
        );
        // Micro-batches are told apart.
        assert_eq!((tried.len(), of("micro_batch", 2i64.into())), (4, None));
        // A number is the same whatever its type.
        history[4].params.insert("readers", ParamValue::Float(2.0));
        assert_eq!(next_untold(&problem, &history, &prior), None);
    }

    #[test]
    fn what_is_expected_to_be_clearly_worse_is_passed_over() {
        let (problem, history) = (problem(), history());
        let prior = Costs { eager: 2.5 };
        let passed = &untold_costs(&problem, &history, &prior)[0];
        let UntoldOutcome::ClearlyWorse { metric, change, beside } = &passed.outcome else {
            panic!("{passed:?}")
        };
        assert_eq!((metric.as_str(), *beside), (PEAK_MEMORY, TrialNumber(1)));
        assert!((change - 1.5).abs() < 1e-9, "{change}");
        // Where predictions stray as far from what is measured, they say nothing of the kind.
        let mut stray = history;
        for (trial, times) in stray.iter_mut().zip([1.0, 3.0, 0.4]) {
            let metrics = trial.state.metrics_mut().unwrap();
            let memory = metrics.value(PEAK_MEMORY).unwrap();
            metrics.insert(PEAK_MEMORY, times * memory);
        }
        let open = &untold_costs(&problem, &stray, &prior)[0];
        assert!(matches!(open.outcome, UntoldOutcome::Open(_)), "{open:?}");
    }

    #[test]
    fn a_disturbed_throughput_says_nothing_of_how_far_predictions_stray() {
        /// Eager attention is expected to be clearly slower.
        struct Slow(Costs);
        impl Prior for Slow {
            fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
                let is_slow = metric == THROUGHPUT && is_eager(params);
                Some(self.0.expected(params, metric)? * if is_slow { 0.4 } else { 1.0 })
            }

            fn impossible(&self, params: &Params) -> Option<String> {
                self.0.impossible(params)
            }

            fn models(&self, parameter: &str) -> bool {
                self.0.models(parameter)
            }
        }
        let (problem, prior, mut history) = (problem(), Slow(Costs { eager: 1.2 }), history());
        history.push(complete(3, setting(8, "sdpa", 0, 5e-3)));
        let outcome = |history: &[Trial]| untold_costs(&problem, history, &prior)[0].outcome.clone();
        let metrics = history[3].state.metrics_mut().unwrap();
        let throughput = metrics.value(THROUGHPUT).unwrap();
        metrics.insert(THROUGHPUT, 0.05 * throughput);
        assert!(matches!(outcome(&history), UntoldOutcome::Open(_)));
        mark_disturbed(history[3].state.metrics_mut().unwrap(), 0.9);
        assert!(matches!(outcome(&history), UntoldOutcome::ClearlyWorse { .. }));
    }

    #[test]
    fn where_all_costs_are_told_nothing_is_measured() {
        struct Known(Costs);
        impl Prior for Known {
            fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
                let readers = 1.0 + 0.01 * number(params, "readers");
                Some(readers * self.0.expected(params, metric)?)
            }

            fn impossible(&self, params: &Params) -> Option<String> {
                self.0.impossible(params)
            }
        }
        let known = Known(Costs { eager: 1.2 });
        assert_eq!(untold_costs(&problem(), &history(), &known), []);
    }

    /// The recommended setting of a search as the tuner runs it.
    fn searched(seed: u64) -> Params {
        let (problem, prior) = (problem(), Arc::new(Costs { eager: 1.2 }));
        let mut sampler = Bayes::new(seed).with_prior(prior.clone());
        let mut history = vec![complete(0, setting(8, "sdpa", 0, 1e-3))];
        let (mut trained, mut tried) = (1, 0);
        while trained < 12 {
            let params = match next_untold(&problem, &history, &*prior) {
                Some(params) => {
                    tried += 1;
                    params
                }
                None => {
                    trained += 1;
                    sampler.ask(&problem, &history).unwrap()
                }
            };
            history.push(complete(history.len(), params));
        }
        assert!(tried <= 2, "seed {seed}: {tried}");
        for _ in 0..6 {
            let Some(params) = next_variant(&problem, &history, &*prior) else {
                break;
            };
            history.push(complete(history.len(), params));
        }
        let chosen = recommend(&problem, &history, &Preference::default()).unwrap();
        chosen.trial.params.clone()
    }

    #[test]
    fn a_search_finds_what_is_faster_than_it_was_predicted_to_be() {
        for seed in 0..3 {
            let found = searched(seed);
            assert!(is_eager(&found), "seed {seed}: {found:?}");
            assert_eq!(found, searched(seed), "seed {seed}");
        }
    }
}
