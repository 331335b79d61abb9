//! Values that repeats of a profile phase, or of a command, confirm.

use std::collections::BTreeMap;

use crate::tune::confirmation::is_cost;
use crate::tune::needed_metrics::needed;
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{Confirmations, Confirmed, Metrics, RunSpread, TrialNumber, disturbed};
use peft_tune_search::Problem;

/// Deviation of the engine's throughputs of one setting from run to run on a quiet machine (standard deviation as a
/// share), and the weight of that beside a study's own repeats, in degrees of freedom.
const USUAL_DEVIATION: f64 = 0.01;
const USUAL_FREEDOM: usize = 2;

/// Values that repeats of costs confirm of each trial that has some: runs of all settings say together how much runs
/// differ.
pub(super) fn costs_confirmed(problem: &Problem, runs: &BTreeMap<TrialNumber, Vec<Metrics>>) -> Confirmations {
    let costs: BTreeMap<TrialNumber, Vec<&Metrics>> = runs
        .iter()
        .map(|(number, runs)| (*number, counting(runs.iter().filter(|run| is_cost(run)))))
        .collect();
    let throughputs: Vec<Vec<f64>> = costs.values().map(|runs| values_of(runs, THROUGHPUT)).collect();
    let spread = RunSpread::of(throughputs.iter().map(Vec::as_slice)).known_before(USUAL_DEVIATION, USUAL_FREEDOM);
    let costs = costs.into_iter().filter(|(_, runs)| !runs.is_empty());
    costs
        .map(|(number, runs)| (number, summarised(problem, &runs, Some(&spread))))
        .collect()
}

/// The repeats that count: disturbed ones only where there is nothing better.
pub(super) fn counting<'a>(repeats: impl Iterator<Item = &'a Metrics>) -> Vec<&'a Metrics> {
    let all: Vec<&Metrics> = repeats.collect();
    let quiet: Vec<&Metrics> = all.iter().copied().filter(|one| disturbed(one).is_none()).collect();
    if quiet.len() > 1 { quiet } else { all }
}

fn values_of(repeats: &[&Metrics], metric: &str) -> Vec<f64> {
    repeats.iter().filter_map(|one| one.value(metric)).collect()
}

/// Values that the repeats of one trial confirm of the metrics that decide; `spread` is that of the throughput, where
/// it is known.
pub(super) fn summarised(
    problem: &Problem,
    repeats: &[&Metrics],
    spread: Option<&RunSpread>,
) -> BTreeMap<String, Confirmed> {
    let confirmed = |metric: &str| {
        let values = values_of(repeats, metric);
        match spread.filter(|_| metric == THROUGHPUT) {
            Some(spread) => Confirmed::with_spread(metric, &values, spread),
            None => Confirmed::of(metric, &values),
        }
    };
    let metrics = needed(problem).into_iter();
    metrics
        .filter_map(|metric| Some((metric.to_owned(), confirmed(metric)?)))
        .collect()
}
