//! How a trial ended, for people.

use crate::report::{disturbance_text, metric_value};
use peft_tune_core::objective::{PEAK_MEMORY, TARGET_SHORTFALL};
use peft_tune_core::study::{FailReason, TrialState, disturbed};

/// How a trial ended in a few words, and the whole reason where there is more to say.
pub(super) fn outcome(state: &TrialState) -> (String, Option<String>) {
    match state {
        TrialState::Complete { metrics } if disturbed(metrics).is_some() => {
            ("complete, disturbed".to_owned(), disturbance_text(metrics))
        }
        TrialState::Complete { metrics } if metrics.value(TARGET_SHORTFALL).is_some() => {
            ("complete, may not fit the target".to_owned(), None)
        }
        TrialState::Pruned { at_step, rule, .. } => {
            let name = rule.split(':').next().unwrap_or_default();
            let detail = (name.len() < rule.len()).then(|| rule.clone());
            (format!("pruned at step {at_step} ({name})"), detail)
        }
        TrialState::Skipped { reason } => ("skipped".to_owned(), Some(reason.clone())),
        TrialState::Failed { reason, .. } => (reason.name().to_owned(), failure_text(reason)),
        other => (other.name().to_owned(), None),
    }
}

fn failure_text(reason: &FailReason) -> Option<String> {
    let bytes = |bytes: u64| metric_value(PEAK_MEMORY, bytes as f64);
    match reason {
        FailReason::OutOfMemory {
            phase,
            in_use_bytes,
            requested_bytes,
            limit_bytes,
        } => {
            let mut text = format!("in phase {}", phase.name());
            for (value, what) in [
                (in_use_bytes, "in use"),
                (requested_bytes, "asked for"),
                (limit_bytes, "allowed"),
            ] {
                if let Some(value) = value {
                    text.push_str(&format!(", {} {what}", bytes(*value)));
                }
            }
            Some(text)
        }
        FailReason::Diverged { at_step, .. } => Some(format!("at step {at_step}{}", reason.cause_text())),
        FailReason::Crashed { phase, message } => Some(format!("in phase {}: {message}", phase.name())),
        FailReason::TimedOut { phase, after_s } => Some(format!("in phase {} after {after_s:.0} s", phase.name())),
        FailReason::Invalid { message } => Some(message.clone()),
    }
}
