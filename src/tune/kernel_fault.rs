//! A kernel that fails (an illegal instruction, an address that is none, a launch that never ends), and the safer form of the ops
//! that its trial is repeated in.

use crate::worker::TrialEvent;
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
