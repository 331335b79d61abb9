//! Seconds in which GPUs wait for their link: what goes over it is in the stream that computes, so that nothing hides it.

use super::step::StepTrace;
use crate::plan::ShardedBytes;

/// Bytes of a gradient.
const ELEMENT: f64 = 4.0;

impl StepTrace<'_> {
    /// Seconds in which the weights of one micro-batch come from other GPUs.
    pub(super) fn gather_link_s(&self) -> f64 {
        let shared = ShardedBytes::of_recipe(&self.network.plan.architecture, self.recipe);
        let (Some(shared), Some(link)) = (shared, self.link) else {
            return 0.0;
        };
        let bytes: u64 = self.gathered().iter().map(|layer| shared.received[*layer]).sum();
        bytes as f64 / link.bytes_per_s
    }

    /// Seconds in which the gradients of all GPUs are added up, once a step.
    pub(super) fn sum_link_s(&self) -> f64 {
        let bytes = ELEMENT * self.network.trained_elements() as f64;
        self.link
            .map_or(0.0, |link| link.sum_s(bytes, self.recipe.batch.devices as u64))
    }

    /// Seconds in which GPUs wait for their link in a step of so many micro-batches, one after the other.
    pub(super) fn link_s(&self, micro_batches: f64) -> f64 {
        micro_batches * self.gather_link_s() + self.sum_link_s()
    }
}
