//! Ends of trials that did not complete.

use peft_tune_core::study::{FailReason, Metrics, Phase, TrialState, with_causes};
use peft_tune_engine::TrainError;

/// Reason why a trial did not complete.
pub(super) enum Interruption {
    Failed(FailReason),
    /// The device answers nothing more to this process.
    DeviceLost {
        message: String,
        /// Whether a kernel failed, and not the device; told already where ranks compute.
        is_kernels: bool,
    },
    /// The trial was asked to stop.
    Stopped {
        at_step: u64,
    },
}

/// The interruption that an engine error means for the trial.
pub(super) fn failure(error: TrainError, phase: Phase) -> Interruption {
    if error.lost_device() {
        return Interruption::DeviceLost {
            message: error.to_string(),
            is_kernels: error.is_kernel_fault(),
        };
    }
    let reason = match error.out_of_memory() {
        true => FailReason::OutOfMemory {
            phase,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        },
        false if phase == Phase::Load => FailReason::Invalid {
            message: error.to_string(),
        },
        false => FailReason::Crashed {
            phase,
            message: error.to_string(),
        },
    };
    Interruption::Failed(reason)
}

/// The interruption by input that no setting can mend: the trial is invalid, with the whole chain of causes as its
/// reason.
pub(super) fn invalid(error: impl std::error::Error + 'static) -> Interruption {
    Interruption::Failed(FailReason::Invalid {
        message: with_causes(&error),
    })
}

/// The state that a trial ended in, by what came of its phases.
pub(super) fn state_of(outcome: Result<(), Interruption>, metrics: Metrics) -> TrialState {
    match outcome {
        Ok(()) => TrialState::Complete { metrics },
        Err(Interruption::Failed(reason)) => TrialState::Failed { reason, metrics },
        Err(Interruption::Stopped { at_step }) => TrialState::Pruned {
            at_step,
            rule: "stopped".to_owned(),
            metrics,
        },
        Err(Interruption::DeviceLost { message, .. }) => TrialState::Failed {
            reason: FailReason::Crashed {
                phase: Phase::Train,
                message,
            },
            metrics,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the data cannot be used")]
    struct Unusable(#[source] std::io::Error);

    #[test]
    fn an_invalid_trial_tells_the_whole_chain_of_causes() {
        let error = Unusable(std::io::Error::other("row 3 is torn"));
        let Interruption::Failed(FailReason::Invalid { message }) = invalid(error) else {
            panic!("not invalid");
        };
        assert_eq!(message, "the data cannot be used: row 3 is torn");
    }
}
