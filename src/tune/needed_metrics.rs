//! Metrics that a study needs of each trial, and when they are known.

use peft_tune_core::study::Metrics;
use peft_tune_search::Problem;

/// The metrics that a complete trial has: those of objectives and constraints, each once.
pub(super) fn needed(problem: &Problem) -> Vec<&str> {
    let objectives = problem.objectives.iter().map(|objective| objective.metric.as_str());
    let constraints = problem.constraints.iter().map(|constraint| constraint.metric.as_str());
    let mut metrics: Vec<&str> = Vec::new();
    for metric in objectives.chain(constraints) {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    metrics
}

/// Steps after which a metric is known, where that is before the end.
pub(super) fn known_after(problem: &Problem, metric: &str) -> Option<u64> {
    let mut objectives = problem.objectives.iter();
    objectives.find(|objective| objective.metric == metric)?.known_after
}

/// The `metrics` that are final after `step` steps.
pub(super) fn final_after(problem: &Problem, metrics: &Metrics, step: u64) -> Metrics {
    let mut known = Metrics::default();
    for (name, value) in metrics.iter() {
        if known_after(problem, name).is_some_and(|after| after <= step) {
            known.insert(name, value);
        }
    }
    known
}
