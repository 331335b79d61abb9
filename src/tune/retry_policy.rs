//! Trials whose process was lost: they are repeated, and set aside when that happens too often.

use super::{TuneError, Tuner};
use peft_tune_core::study::{FailReason, Metrics, TrialNumber, TrialState};

/// Attempts that a trial may lose, by default.
const ATTEMPTS: u64 = 3;
/// Trials set aside in a row after which it cannot be the settings' fault.
const SET_ASIDE_IN_A_ROW: u64 = 4;

/// How often trials may be lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    attempts: u64,
    /// Trials that were set aside since one ended by itself.
    set_aside: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: ATTEMPTS,
            set_aside: 0,
        }
    }
}

impl RetryPolicy {
    /// Lets each trial lose so many attempts before it is set aside.
    pub(super) fn allow(&mut self, attempts: u64) {
        self.attempts = attempts.max(1);
    }

    /// Whether a trial that has lost so many attempts is repeated.
    fn repeats(&self, lost: u64) -> bool {
        lost < self.attempts
    }

    /// A trial ended by itself.
    pub(super) fn renew(&mut self) {
        self.set_aside = 0;
    }

    /// A trial is set aside; returns how many were in a row, where that cannot be the settings' fault.
    fn set_aside(&mut self) -> Option<u64> {
        self.set_aside += 1;
        (self.set_aside >= SET_ASIDE_IN_A_ROW).then_some(self.set_aside)
    }
}

impl Tuner<'_> {
    /// A trial's process is gone: the trial is handed back, or set aside.
    pub(super) async fn lost(&mut self, number: TrialNumber, reason: FailReason, wall_s: f64) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        let lost = store.record_loss(id, number, &reason, wall_s).await?;
        tracing::warn!(trial = number.0, lost, ?reason, "a trial's process was lost");
        let safer = self.takes_safer_kernels(number);
        if safer || self.retry_policy.repeats(lost) {
            self.clock.attempt_lost(wall_s);
            self.hand_back(number).await?;
            self.queue.repeat(number);
            return Ok(());
        }
        let reason = match reason {
            FailReason::Crashed { phase, message } => FailReason::Crashed {
                phase,
                message: format!("{message} (set aside after {lost} lost attempts)"),
            },
            other => other,
        };
        let state = TrialState::Failed {
            reason: reason.clone(),
            metrics: Metrics::default(),
        };
        self.end(number, state, wall_s).await?;
        match self.retry_policy.set_aside() {
            Some(trials) => Err(TuneError::WorkersLost { trials, reason }),
            None => Ok(()),
        }
    }

    /// Hands a running trial back: it waits to be run again, without what it left.
    pub(super) async fn hand_back(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let running = self.running.remove(number);
        if running.is_some_and(|running| running.has_measured()) {
            self.memory.forget(number);
        }
        self.parts.store.release_trial(self.parts.id, number).await?;
        self.trials.hand_back(number);
        Ok(())
    }

    /// Hands all running trials back.
    pub(super) async fn hand_all_back(&mut self) -> Result<(), TuneError> {
        let numbers: Vec<TrialNumber> = self.running.numbers().collect();
        for number in numbers {
            self.hand_back(number).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_repeated_until_its_attempts_are_lost() {
        let mut policy = RetryPolicy::default();
        assert!(policy.repeats(ATTEMPTS - 1) && !policy.repeats(ATTEMPTS));
        policy.allow(0);
        assert!(!policy.repeats(1), "the first attempt is the last");
    }

    #[test]
    fn trials_that_are_set_aside_in_a_row_are_not_the_settings_fault() {
        let mut policy = RetryPolicy::default();
        assert_eq!([(); 3].map(|()| policy.set_aside()), [None; 3]);
        policy.renew();
        assert_eq!([(); 4].map(|()| policy.set_aside()), [None, None, None, Some(4)]);
    }
}
