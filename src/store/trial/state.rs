//! [`TrialState`] as the columns `state`, `reason`, `phase` and `detail`.

use serde::{Deserialize, Serialize};

use crate::store::row::{finite, finite_or_0};
use peft_tune_core::study::{FailReason, Metrics, TrialState};

/// A state as the `trial` table holds it; its metrics are in their own table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StateColumns {
    pub state: String,
    /// Kind of failure, rule that pruned, or why it was skipped.
    pub reason: Option<String>,
    /// Phase that failed; `None` leaves the phase as it is.
    pub phase: Option<&'static str>,
    /// JSON from which the reason can be made again.
    pub detail: Option<String>,
}

/// The detail of a pruned trial.
#[derive(Serialize, Deserialize)]
struct PrunedDetail {
    at_step: u64,
}

impl StateColumns {
    /// The columns of a state.
    pub(super) fn new(state: &TrialState) -> Result<Self, serde_json::Error> {
        let (reason, phase, detail) = match state {
            TrialState::Waiting | TrialState::Running | TrialState::Complete { .. } => (None, None, None),
            TrialState::Pruned { at_step, rule, .. } => {
                let detail = serde_json::to_string(&PrunedDetail { at_step: *at_step })?;
                (Some(rule.clone()), None, Some(detail))
            }
            TrialState::Failed { reason, .. } => {
                let detail = serde_json::to_string(&with_finite_numbers(reason))?;
                (Some(reason.name().to_owned()), phase_of(reason), Some(detail))
            }
            TrialState::Skipped { reason } => (Some(reason.clone()), None, None),
        };
        Ok(Self {
            state: state.name().to_owned(),
            reason,
            phase,
            detail,
        })
    }

    /// The state that the columns and metrics tell.
    pub(super) fn to_state(&self, metrics: Metrics) -> Result<TrialState, serde_json::Error> {
        let detail = self.detail.as_deref().unwrap_or("null");
        Ok(match self.state.as_str() {
            "running" => TrialState::Running,
            "complete" => TrialState::Complete { metrics },
            "pruned" => TrialState::Pruned {
                at_step: serde_json::from_str::<PrunedDetail>(detail)?.at_step,
                rule: self.reason.clone().unwrap_or_default(),
                metrics,
            },
            "failed" => TrialState::Failed {
                reason: serde_json::from_str(detail)?,
                metrics,
            },
            "skipped" => TrialState::Skipped {
                reason: self.reason.clone().unwrap_or_default(),
            },
            // The table's check leaves only `waiting`.
            _ => TrialState::Waiting,
        })
    }
}

fn phase_of(reason: &FailReason) -> Option<&'static str> {
    match reason {
        FailReason::OutOfMemory { phase, .. }
        | FailReason::Crashed { phase, .. }
        | FailReason::TimedOut { phase, .. } => Some(phase.name()),
        // It was in the phase that was recorded last.
        FailReason::Diverged { .. } | FailReason::Invalid { .. } => None,
    }
}

/// The reason without NaN, which JSON has not: such a loss is left out, such a time is 0.
fn with_finite_numbers(reason: &FailReason) -> FailReason {
    let mut reason = reason.clone();
    match &mut reason {
        FailReason::Diverged { loss, .. } => *loss = loss.and_then(finite),
        FailReason::TimedOut { after_s, .. } => *after_s = finite_or_0(*after_s),
        FailReason::OutOfMemory { .. } | FailReason::Crashed { .. } | FailReason::Invalid { .. } => {}
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_without_a_finite_loss_can_be_read_back() {
        let state = |loss| TrialState::Failed {
            reason: FailReason::Diverged {
                at_step: 3,
                loss,
                cause: None,
            },
            metrics: Metrics::default(),
        };
        let columns = StateColumns::new(&state(Some(f64::NAN))).unwrap();
        assert_eq!(columns.reason.as_deref(), Some("diverged"));
        assert_eq!(columns.to_state(Metrics::default()).unwrap(), state(None));
    }
}
