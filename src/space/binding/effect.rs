//! Which metrics a parameter can change, and why.

use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT};

/// Whether a parameter can change one metric, with the reason. In doubt it can: a reused number must be right, a
/// number measured once too often only costs time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Changes(&'static str),
    /// Only through the number of rows in a step: not where the study holds `global_batch`.
    ThroughGlobalBatch(&'static str),
    Same(&'static str),
}

impl Effect {
    /// Whether the metric can change, the global batch being free to change too.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Same(_))
    }

    /// Why.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Changes(reason) | Self::ThroughGlobalBatch(reason) | Self::Same(reason) => reason,
        }
    }
}

/// The effects of one parameter on the three metrics of the native backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    pub throughput: Effect,
    pub peak_memory: Effect,
    pub loss: Effect,
}

impl Effects {
    /// A parameter of the update rule or of the adapter's function: the same work on other numbers.
    pub(super) const fn loss_only(why_not_cost: &'static str, why_loss: &'static str) -> Self {
        Self {
            throughput: Effect::Same(why_not_cost),
            peak_memory: Effect::Same(why_not_cost),
            loss: Effect::Changes(why_loss),
        }
    }

    /// A parameter that can change everything.
    pub(super) const fn all(throughput: &'static str, peak_memory: &'static str, loss: &'static str) -> Self {
        Self {
            throughput: Effect::Changes(throughput),
            peak_memory: Effect::Changes(peak_memory),
            loss: Effect::Changes(loss),
        }
    }

    /// Each metric's name with its effect.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Effect)> {
        [
            (THROUGHPUT, self.throughput),
            (PEAK_MEMORY, self.peak_memory),
            (LOSS, self.loss),
        ]
        .into_iter()
    }
}
