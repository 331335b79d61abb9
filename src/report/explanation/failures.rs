//! What failed in a study, and what the trials that failed have in common.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::{param_value, printable};
use peft_tune_core::study::{FailReason, ParamValue, Params, Trial, TrialState};

/// Fewest failures that can have something in common.
const LEAST: usize = 2;
/// Largest share of the other trials that may have it too.
const MOST_OTHERS: f64 = 0.5;
/// Numbers of trials that a line names.
const MOST_NUMBERS: usize = 5;

/// Trials that ended without a result for one reason, or were stopped by one rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Failures {
    pub(super) reason: String,
    pub(super) trials: Vec<u64>,
    /// What the first of them said, where it said something.
    pub(super) example: Option<String>,
    /// What all of them have in common and most others have not, such as `micro_batch >= 32`.
    pub(super) common: Vec<String>,
}

/// Failures by reason, then stopped trials by rule.
pub(super) fn failures(trials: &[Trial]) -> Vec<Failures> {
    let mut groups: BTreeMap<(u8, String), Vec<&Trial>> = BTreeMap::new();
    for trial in trials {
        let group = match &trial.state {
            TrialState::Failed { reason, .. } => (0, reason.name().to_owned()),
            TrialState::Skipped { .. } => (1, "skipped".to_owned()),
            TrialState::Pruned { rule, .. } => (2, format!("stopped by {}", rule.split(':').next().unwrap_or(rule))),
            TrialState::Waiting | TrialState::Running | TrialState::Complete { .. } => continue,
        };
        groups.entry(group).or_default().push(trial);
    }
    let one = |((kind, reason), failed): ((u8, String), Vec<&Trial>)| {
        let others: Vec<&Params> = trials
            .iter()
            .filter(|trial| matches!(trial.state, TrialState::Complete { .. } | TrialState::Pruned { .. }))
            .filter(|trial| failed.iter().all(|other| other.number != trial.number))
            .map(|trial| &trial.params)
            .collect();
        let params: Vec<&Params> = failed.iter().map(|trial| &trial.params).collect();
        Failures {
            reason,
            trials: failed.iter().map(|trial| trial.number.0).collect(),
            example: failed.first().and_then(|trial| failure_message(&trial.state)),
            // Stopped trials are poor in many ways: what they share says little.
            common: if kind < 2 { common(&params, &others) } else { Vec::new() },
        }
    };
    groups.into_iter().map(one).collect()
}

/// A line each.
pub(super) fn failure_lines(trials: &[Trial]) -> Vec<String> {
    let line = |one: Failures| {
        let numbers: Vec<String> = one.trials.iter().take(MOST_NUMBERS).map(u64::to_string).collect();
        let more = if one.trials.len() > MOST_NUMBERS { ", ..." } else { "" };
        let mut text = format!(
            "  {} {}: trial {}{more}",
            one.trials.len(),
            one.reason,
            numbers.join(", ")
        );
        if !one.common.is_empty() {
            text.push_str(&format!("; all have {}", one.common.join(" and ")));
        }
        if let Some(example) = &one.example {
            text.push_str(&format!("; the first: {example}"));
        }
        printable(&text)
    };
    failures(trials).into_iter().map(line).collect()
}

/// What a failed or skipped trial's state says of the cause.
pub fn failure_message(state: &TrialState) -> Option<String> {
    match state {
        TrialState::Failed { reason, .. } => Some(reason_message(reason)),
        TrialState::Skipped { reason } => Some(reason.clone()),
        _ => None,
    }
}

/// What a reason says of the cause, behind its kind.
pub fn reason_message(reason: &FailReason) -> String {
    match reason {
        FailReason::OutOfMemory { phase, .. } => format!("in the {} phase", phase.name()),
        FailReason::Diverged { at_step, .. } => format!("at step {at_step}{}", reason.cause_text()),
        FailReason::Crashed { message, .. } | FailReason::Invalid { message } => {
            message.lines().next_back().unwrap_or_default().to_owned()
        }
        FailReason::TimedOut { phase, after_s } => format!("in the {} phase after {after_s:.0} s", phase.name()),
    }
}

/// Conditions on single parameters that hold for all of `failed` and for few of `others`.
fn common(failed: &[&Params], others: &[&Params]) -> Vec<String> {
    if failed.len() < LEAST || others.is_empty() {
        return Vec::new();
    }
    let names = failed[0]
        .keys()
        .filter(|name| failed.iter().all(|params| params.contains_key(name)));
    let mut found: Vec<(f64, String)> = names.filter_map(|name| condition(name, failed, others)).collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found.into_iter().take(2).map(|(_, text)| text).collect()
}

/// The condition on one parameter, with the share of others that meet it too.
fn condition(name: &str, failed: &[&Params], others: &[&Params]) -> Option<(f64, String)> {
    let numbers: Option<Vec<f64>> = failed.iter().map(|params| params[name].as_f64()).collect();
    let share = |holds: &dyn Fn(&ParamValue) -> bool| {
        let met = others
            .iter()
            .filter(|params| params.get(name).is_some_and(holds))
            .count();
        met as f64 / others.len() as f64
    };
    let mut found: Vec<(f64, String)> = Vec::new();
    if let Some(numbers) = numbers {
        let (low, high) = numbers
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(*value), high.max(*value))
            });
        let text = |value: f64| param_value(&ParamValue::Float(value));
        found.push((
            share(&|value| value.as_f64().is_some_and(|one| one >= low)),
            format!("{name} >= {}", text(low)),
        ));
        found.push((
            share(&|value| value.as_f64().is_some_and(|one| one <= high)),
            format!("{name} <= {}", text(high)),
        ));
    } else if failed.iter().all(|params| params[name] == failed[0][name]) {
        let value = &failed[0][name];
        found.push((share(&|other| other == value), format!("{name} {}", param_value(value))));
    }
    found
        .into_iter()
        .filter(|(share, _)| *share <= MOST_OTHERS)
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::{Metrics, Phase, TrialNumber};

    fn trial(number: u64, micro_batch: i64, precision: &str, failed: bool) -> Trial {
        let reason = FailReason::OutOfMemory {
            phase: Phase::Profile,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        };
        let metrics = Metrics::default();
        Trial {
            number: TrialNumber(number),
            params: [
                ("micro_batch".to_owned(), micro_batch.into()),
                ("precision".to_owned(), precision.into()),
            ]
            .into(),
            state: match failed {
                true => TrialState::Failed { reason, metrics },
                false => TrialState::Complete { metrics },
            },
        }
    }

    #[test]
    fn what_only_the_failed_ones_share_is_named() {
        let trials = [
            trial(0, 32, "fp32", true),
            trial(1, 64, "fp32", true),
            trial(2, 8, "fp32", false),
            trial(3, 4, "fp32", false),
            trial(4, 32, "bf16", false),
        ];
        let found = failures(&trials);
        assert_eq!(
            (found[0].reason.as_str(), &found[0].trials[..]),
            ("out_of_memory", &[0, 1][..])
        );
        assert_eq!(found[0].common, ["micro_batch >= 32"]);
        assert_eq!(
            failure_lines(&trials),
            ["  2 out_of_memory: trial 0, 1; all have micro_batch >= 32; the first: in the profile phase"]
        );
    }

    #[test]
    fn one_failure_has_nothing_in_common_and_no_failure_is_no_line() {
        let trials = [trial(0, 32, "fp32", true), trial(1, 8, "fp32", false)];
        assert!(failures(&trials)[0].common.is_empty());
        assert!(failure_lines(&trials[1..]).is_empty());
    }
}
