//! A kernel that fails (an illegal instruction, an address that is none, a launch that never ends): its trial is repeated in a
//! safer form of the ops, and where that works, the rest of the search stays with it.

use super::running::Running;
use super::{TuneError, Tuner};
use crate::worker::TrialEvent;
use peft_tune_core::study::{TrialNumber, TrialState};
use peft_tune_kernels::{AttentionKernels, Kernels};

/// Kernels that computed a trial, beside the form of its ops.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelsUsed {
    /// The fastest kernels of attention on a GPU.
    pub(super) attention: Option<AttentionKernels>,
    /// Whether products of quantized weights took those of adapters along.
    pub(super) longer_sums: bool,
}

impl KernelsUsed {
    /// The kernels that an event tells of.
    pub(super) fn of(event: &TrialEvent) -> Option<Self> {
        match event {
            TrialEvent::Kernels {
                attention, longer_sums, ..
            } => Some(Self {
                attention: *attention,
                longer_sums: *longer_sums,
            }),
            _ => None,
        }
    }
}

/// Knowledge of a kernel's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFault {
    /// The form of the ops that met it.
    pub kernels: Kernels,
    pub attention: Option<AttentionKernels>,
    /// The driver's error.
    pub message: String,
}

impl KernelFault {
    /// The fault that an event tells of.
    pub(super) fn of(event: &TrialEvent) -> Option<Self> {
        let TrialEvent::Kernels {
            kernels,
            attention,
            fault: Some(message),
            ..
        } = event
        else {
            return None;
        };
        Some(Self {
            kernels: *kernels,
            attention: *attention,
            message: message.clone(),
        })
    }

    /// The form to try next, if there is a safer one.
    pub(super) fn safer(&self) -> Option<Kernels> {
        self.kernels.safer(self.attention)
    }
}

/// A trial that is repeated in a safer form.
#[derive(Clone, Debug)]
pub(super) struct SaferForm {
    pub(super) kernels: Kernels,
    /// The form that it was to compute in.
    pub(super) instead_of: Kernels,
    pub(super) fault: KernelFault,
}

impl Tuner<'_> {
    /// The form that a trial computes in.
    pub(super) fn kernels_of(&self, number: TrialNumber) -> Kernels {
        let running = self.running.get(number).map(Running::kernels);
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
