//! Which constants an optimizer reads.

use super::{AdapterBias, OptimizerKind, Recipe};

impl OptimizerKind {
    pub const ALL: [Self; 9] = [
        Self::AdamW,
        Self::Sgd,
        Self::AdamW8bit,
        Self::PagedAdamW,
        Self::PagedAdamW8bit,
        Self::Lion,
        Self::Lion8bit,
        Self::Adafactor,
        Self::Muon,
    ];

    /// As recipes and study files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Sgd => "sgd",
            Self::AdamW8bit => "adamw_8bit",
            Self::PagedAdamW => "paged_adamw",
            Self::PagedAdamW8bit => "paged_adamw_8bit",
            Self::Lion => "lion",
            Self::Lion8bit => "lion_8bit",
            Self::Adafactor => "adafactor",
            Self::Muon => "muon",
        }
    }

    /// Whether its update has `momentum`.
    pub fn reads_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Muon)
    }

    /// Whether it keeps no velocity at a momentum of 0.
    pub fn drops_velocity(self) -> bool {
        self == Self::Sgd
    }

    /// Whether `nesterov` chooses the form of the momentum. Muon always has Nesterov's.
    pub fn reads_nesterov(self) -> bool {
        self == Self::Sgd
    }

    /// Whether its update has `beta1` and `beta2`.
    pub fn reads_betas(self) -> bool {
        self.reads_epsilon() || matches!(self, Self::Lion | Self::Lion8bit)
    }

    /// Whether its update has `epsilon`.
    pub fn reads_epsilon(self) -> bool {
        self.unpaged() == Self::AdamW || self.unpaged() == Self::AdamW8bit
    }

    /// The optimizer that updates what is no matrix.
    pub fn of_vectors(self) -> Self {
        match self {
            Self::Muon => Self::AdamW,
            other => other,
        }
    }

    /// The optimizer that computes the same updates with its states on the device.
    pub fn unpaged(self) -> Self {
        match self {
            Self::PagedAdamW => Self::AdamW,
            Self::PagedAdamW8bit => Self::AdamW8bit,
            other => other,
        }
    }
}

impl Recipe {
    /// Whether the update rule of some trained parameter `reads` a constant.
    pub(super) fn updates_by(&self, reads: fn(OptimizerKind) -> bool) -> bool {
        let kind = self.optimizer.kind;
        reads(kind) || self.may_train_vectors() && reads(kind.of_vectors())
    }

    /// Whether parameters that are no matrices may train: biases, DoRA's magnitudes, norms.
    fn may_train_vectors(&self) -> bool {
        self.adapter.as_ref().is_none_or(|adapter| {
            adapter.dora
                || adapter.lora_bias
                || adapter.bias != AdapterBias::None
                || !adapter.modules_to_save.is_empty()
        })
    }
}
