//! Safer forms of the ops: a trial whose kernel failed is repeated in one, and where that works, the rest of the search stays
//! with it.

use super::kernel_fault::{KernelsUsed, SaferForm};
use super::running_trial::RunningTrial;
use super::{TuneError, Tuner};
use peft_tune_core::study::{TrialNumber, TrialState};
use peft_tune_kernels::{AttentionKernels, Kernels};

impl Tuner<'_> {
    /// The form that a trial computes in.
    pub(super) fn kernels_of(&self, number: TrialNumber) -> Kernels {
        let running = self.running.get(number).map(RunningTrial::kernels);
        running.unwrap_or_else(|| self.forms.of_next_attempt(number))
    }

    /// Takes in the end of a trial. Where it worked in a safer form, all further ones compute in that.
    pub(super) fn note_safer_kernels(&mut self, number: TrialNumber, state: &TrialState) {
        if let Some(safer) = self.forms.ended(number, state) {
            self.stay_with(&safer);
        }
    }

    /// Lets all further trials compute in this form.
    pub(super) fn stay_with(&mut self, safer: &SaferForm) {
        self.forms.stay_with(safer);
        if let Some(predictions) = &mut self.predictions {
            predictions.forget();
        }
        tracing::info!(
            kernels = safer.kernels.name(),
            "further trials stay with the safer kernels"
        );
        self.parts.observer.kernels_changed(&safer.fault, safer.kernels);
    }

    /// Stores which kernels computed a trial's attention, and how sums with adapters were made.
    pub(super) async fn note_ran(&self, number: TrialNumber, ran: KernelsUsed) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        let attention = ran.attention.map(AttentionKernels::name);
        Ok(store
            .kernel_forms()
            .record_ran(id, number, attention, ran.longer_sums)
            .await?)
    }
}
