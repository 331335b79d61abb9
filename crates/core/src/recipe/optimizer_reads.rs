//! Settings of the optimizer and of the schedule that the updates of a recipe read.

use super::{AdapterBias, OptimizerKind, Recipe};

impl Recipe {
    /// Whether the update rule of some trained parameter `reads` a constant.
    pub(super) fn updates_by(&self, reads: fn(OptimizerKind) -> bool) -> bool {
        let kind = self.optimizer.kind;
        reads(kind) || self.may_train_vectors() && reads(kind.of_vectors())
    }

    /// Whether the schedule has this setting among its arguments.
    pub(super) fn schedules_by(&self, setting: &str) -> bool {
        let mut arguments = self.schedule.kind.row().arguments.iter();
        !self.optimizer.kind.is_schedule_free() && arguments.any(|(_, read)| *read == setting)
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
