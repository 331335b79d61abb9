//! Measurements of a command's earlier trials, metric by metric: the next trial runs only as far as something is
//! unknown.
//!
//! A parameter of the study file may say which metrics it can change (`affects`). Two trials whose params agree in
//! everything that can change a metric have the same value of it. An objective may say after how many steps it is known
//! (`known_after`): a trial that lacks only such metrics is stopped after those steps.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::decision::Decision;
use super::measurement::{Measurement, Taken};
use super::needed_metrics::{known_after, needed};
use crate::worker::Task;
use peft_tune_core::study::{FailReason, Params, Trial, TrialNumber, TrialState};
use peft_tune_search::Problem;

/// Digest of a metric and the params that can change it, half of a SHA-256: params with the same one share the metric.
pub(super) type MetricKey = [u8; 16];

/// Measurements of a command's metrics by the params that can change them.
#[derive(Debug, Default)]
pub(super) struct MeasuredMetrics {
    values: BTreeMap<MetricKey, TrialNumber>,
    out_of_memory: BTreeMap<MetricKey, (TrialNumber, FailReason)>,
}

impl MeasuredMetrics {
    /// Keeps what a finished trial measured; the first measurement of a key stays.
    pub(super) fn learn(&mut self, problem: &Problem, trial: &Trial) {
        let (metrics, steps) = match &trial.state {
            TrialState::Complete { metrics } => (metrics, u64::MAX),
            TrialState::Pruned { at_step, metrics, .. } => (metrics, *at_step),
            TrialState::Failed { reason, .. } => {
                if let (FailReason::OutOfMemory { .. }, Some(key)) = (reason, memory_key(problem, &trial.params)) {
                    self.out_of_memory
                        .entry(key)
                        .or_insert_with(|| (trial.number, reason.clone()));
                }
                return;
            }
            TrialState::Waiting | TrialState::Running | TrialState::Skipped { .. } => return,
        };
        for metric in needed(problem) {
            let is_final = steps == u64::MAX || known_after(problem, metric).is_some_and(|after| after <= steps);
            if metrics.value(metric).is_some() && is_final {
                let key = metric_key(problem, metric, &trial.params);
                self.values.entry(key).or_insert(trial.number);
            }
        }
    }

    /// The decision on what a trial of `params` has to run.
    pub(super) fn decide(&self, problem: &Problem, params: &Params, task: Task) -> Decision {
        if let Some((source, reason)) = memory_key(problem, params).and_then(|key| self.out_of_memory.get(&key)) {
            return Decision::Fails {
                part: Measurement::Metric(memory_metric(problem).unwrap_or_default().to_owned()),
                source: *source,
                reason: reason.clone(),
            };
        }
        let mut taken = Vec::new();
        let mut unknown = 0;
        for metric in needed(problem) {
            match self.values.get(&metric_key(problem, metric, params)) {
                None => unknown += 1,
                Some(source) => taken.push(Taken {
                    part: Measurement::Metric(metric.to_owned()),
                    source: *source,
                }),
            }
        }
        if unknown == 0 {
            return Decision::Known { taken };
        }
        Decision::Run { task, taken }
    }
}

/// Digest of a metric and the canonical JSON of the params that can change it.
pub(super) fn metric_key(problem: &Problem, metric: &str, params: &Params) -> MetricKey {
    let affects = |name: &str| {
        let parameter = problem.space.parameters.iter().find(|parameter| parameter.name == name);
        parameter.is_none_or(|parameter| parameter.can_change(metric))
    };
    let mut deciding = params.clone();
    deciding.retain(|name, _| affects(name));
    let text = serde_json::to_string(&(metric, deciding)).expect("params hold only values that JSON has");
    let mut half = MetricKey::default();
    half.copy_from_slice(&Sha256::digest(text)[..16]);
    half
}

/// The metric that says how much memory a trial takes, if one does: the one whose name says so.
fn memory_metric(problem: &Problem) -> Option<&str> {
    needed(problem).into_iter().find(|metric| names_memory(metric))
}

/// Whether a word of a metric's name is memory.
fn names_memory(metric: &str) -> bool {
    let mut words = metric.split(|character: char| !character.is_alphanumeric());
    words.any(|word| word.eq_ignore_ascii_case("memory") || word.eq_ignore_ascii_case("mem"))
}

fn memory_key(problem: &Problem, params: &Params) -> Option<MetricKey> {
    Some(metric_key(problem, memory_metric(problem)?, params))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::Objective;
    use peft_tune_core::space::{Distribution, Parameter, SearchSpace};
    use peft_tune_core::study::{Metrics, ParamValue, Phase};

    fn problem() -> Problem {
        let parameter = |name: &str, affects: Option<&[&str]>| Parameter {
            name: name.to_owned(),
            distribution: Distribution::Categorical {
                choices: (0..4i64).map(ParamValue::Int).collect(),
            },
            condition: None,
            affects: affects.map(|metrics| metrics.iter().map(|metric| (*metric).to_owned()).collect()),
            widest: None,
        };
        let early = |metric: &str| Objective {
            known_after: Some(2),
            ..Objective::new(metric)
        };
        Problem {
            space: SearchSpace {
                parameters: vec![
                    parameter("width", None),
                    parameter("rate", Some(&["error"])),
                    parameter("cache", Some(&["speed", "memory"])),
                ],
            },
            objectives: vec![early("speed"), early("memory"), Objective::new("error")],
            constraints: Vec::new(),
        }
    }

    fn params(width: i64, rate: i64, cache: i64) -> Params {
        [("width", width), ("rate", rate), ("cache", cache)]
            .map(|(name, value)| (name.to_owned(), ParamValue::Int(value)))
            .into()
    }

    fn trial(number: u64, params: Params, state: TrialState) -> Trial {
        let number = TrialNumber(number);
        Trial { number, params, state }
    }

    fn task() -> Task {
        Task::Params {
            params: Params::new(),
            seed: 0,
            steps: None,
        }
    }

    fn inherited(decision: &Decision) -> Vec<String> {
        let (Decision::Run { taken, .. } | Decision::Known { taken }) = decision else {
            panic!("{decision:?}")
        };
        let name = |one: &Taken| match &one.part {
            Measurement::Metric(metric) => format!("{metric} from {}", one.source),
            part => panic!("{part:?}"),
        };
        taken.iter().map(name).collect()
    }

    #[test]
    fn a_metric_is_taken_over_where_nothing_that_can_change_it_differs() {
        let problem = problem();
        let mut known = MeasuredMetrics::default();
        let metrics = [("speed", 1.0), ("memory", 2.0), ("error", 3.0)].into();
        known.learn(&problem, &trial(4, params(1, 1, 1), TrialState::Complete { metrics }));
        let decide = |params| known.decide(&problem, &params, task());
        assert_eq!(inherited(&decide(params(1, 2, 1))), ["speed from 4", "memory from 4"]);
        assert_eq!(inherited(&decide(params(1, 1, 2))), ["error from 4"]);
        assert!(inherited(&decide(params(2, 1, 1))).is_empty());
        assert!(matches!(decide(params(1, 1, 1)), Decision::Known { .. }));
    }

    #[test]
    fn a_stopped_trial_leaves_only_what_was_final_by_then() {
        let problem = problem();
        let mut known = MeasuredMetrics::default();
        let state = TrialState::Pruned {
            at_step: 5,
            rule: "dominance".to_owned(),
            metrics: [("speed", 1.0), ("error", 9.0)].into(),
        };
        known.learn(&problem, &trial(0, params(1, 1, 1), state));
        let decision = known.decide(&problem, &params(1, 1, 1), task());
        assert_eq!(inherited(&decision), ["speed from 0"]);
    }

    #[test]
    fn what_ran_out_of_memory_does_so_with_another_rate() {
        let problem = problem();
        let mut known = MeasuredMetrics::default();
        let reason = FailReason::OutOfMemory {
            phase: Phase::Train,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        };
        let state = TrialState::Failed {
            reason,
            metrics: Metrics::default(),
        };
        known.learn(&problem, &trial(0, params(1, 1, 1), state));
        let fails = |params| matches!(known.decide(&problem, &params, task()), Decision::Fails { .. });
        assert!(fails(params(1, 3, 1)) && !fails(params(1, 1, 2)));
    }

    #[test]
    fn a_metric_of_memory_has_a_word_that_says_so() {
        let named = ["peak_memory", "gpu_mem", "memory_gib", "Memory (MiB)", "mem"];
        assert!(named.into_iter().all(names_memory));
        let others = ["member_accuracy", "memorization", "remembered", "loss"];
        assert!(!others.into_iter().any(names_memory));
    }
}
