//! Trials that fail: those whose process was lost are repeated, or set aside when that happens too often; and where
//! trials fail alike, the study is to blame rather than their settings.

use super::running_trial::RunningTrial;
use super::{TuneError, Tuner};
use peft_tune_core::study::{FailReason, Metrics, TrialNumber, TrialState};

impl Tuner<'_> {
    /// Hands a trial back whose process is gone, or sets it aside.
    pub(super) async fn lost(&mut self, number: TrialNumber, reason: FailReason, wall_s: f64) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        let lost = store.lost_attempts().record(id, number, &reason, wall_s).await?;
        tracing::warn!(trial = number.0, lost, ?reason, "a trial's process was lost");
        let safer = self.takes_safer_kernels(number);
        if safer || self.failures.repeats(lost) {
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
        match self.failures.set_aside() {
            Some(trials) => Err(TuneError::WorkersLost { trials, reason }),
            None => Ok(()),
        }
    }

    /// Hands a running trial back: it waits to be run again, without what it left.
    pub(super) async fn hand_back(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let running = self.running.remove(number);
        if running.is_some_and(|running| running.has_measured()) {
            self.known.forget(number);
        }
        self.parts.store.trials().release(self.parts.id, number).await?;
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

    /// Whether a trial that was lost is to be repeated in a safer form; it then is, from now on.
    fn takes_safer_kernels(&mut self, number: TrialNumber) -> bool {
        let fault = self.running.get_mut(number).and_then(RunningTrial::take_fault);
        fault.is_some_and(|fault| self.forms.fall_back(number, fault))
    }

    /// Looks for the cause once nothing runs and the last trials failed alike: the study's fault, unless it can be
    /// shown that a trial still runs.
    ///
    /// # Errors
    /// [`TuneError::FailAlike`]; the trials then wait to be run again. The workers' own errors, too.
    pub(super) async fn look_into_failures(&mut self) -> Result<(), TuneError> {
        if self.failures.rehearses() {
            match self.rehearse() {
                Ok(()) => {
                    self.failures.acquit();
                    return Ok(());
                }
                Err(TuneError::Rehearsal { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let (store, id) = (self.parts.store, self.parts.id);
        let (trials, reason) = self.failures.take_alike();
        store.trials().reopen_failed(id, &trials).await?;
        Err(TuneError::FailAlike {
            trials: trials.len(),
            message: reason.map(|reason| reason.message().to_owned()).unwrap_or_default(),
        })
    }
}
