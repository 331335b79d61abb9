//! Cost of updates on the host (`optimizer_offload: host`) to a training on a GPU: seconds of a step, and bytes of the
//! host's memory.
//!
//! Parts go to the host, are updated and come back, one behind the other on each of the three ways; a part begins when its gradients are
//! ready. What is over before the backward pass costs nothing: a step is longer by what is left then.

use super::data_sheet::DataSheet;
use super::network::Network;
use super::optimizer_state::{state_bytes, update_bytes};
use crate::plan::{GradientsReady, UpdatePart, update_parts};
use crate::recipe::{OptimizerKind, Recipe};

/// Bytes of a value or a gradient.
const ELEMENT: f64 = 4.0;

/// Seconds to hand a part to a thread of the host and its threads, and back.
const HANDOVER_S: f64 = 5e-5;

/// Rates that the host of a GPU reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRates {
    /// Bytes a second that all its threads read and write.
    pub memory_bytes_per_s: f64,
    /// FLOP/s of its products in F32.
    pub flops_per_s: f64,
}

impl HostRates {
    /// Rates of a server that nobody has measured.
    pub const USUAL: Self = Self {
        memory_bytes_per_s: 1e11,
        flops_per_s: 1e12,
    };
}

/// Update of one training on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostUpdate<'a> {
    pub network: &'a Network,
    pub recipe: &'a Recipe,
    pub rates: HostRates,
    /// Bytes a second between GPU and host, each way.
    pub link: f64,
    /// FLOPs of the update's products.
    pub flops: f64,
    /// Seconds of a micro-batch's backward pass.
    pub backward_s: f64,
}

/// Ends of what has been queued in one step, in seconds since the end of the backward pass: copies to the host, its updates, and copies
/// back.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostQueues {
    arrived: f64,
    updated: f64,
    returned: f64,
}

impl HostQueues {
    /// Queues of a step in which nothing is updated on the host.
    pub(super) fn new() -> Self {
        Self {
            arrived: f64::NEG_INFINITY,
            updated: f64::NEG_INFINITY,
            returned: 0.0,
        }
    }

    /// Puts the parts of a training behind what is queued.
    pub(super) fn push(&mut self, update: &HostUpdate<'_>) {
        let plan = &update.network.plan;
        for part in &update_parts(&plan.layout, plan.layers.len()) {
            let copy = ELEMENT * part.elements() as f64 / update.link;
            self.arrived = self.arrived.max(update.ready(part)) + copy;
            self.updated = self.updated.max(self.arrived) + update.work(part);
            self.returned = self.returned.max(self.updated) + copy;
        }
    }

    /// Seconds by which the step is longer than its passes.
    pub(super) fn seconds(&self) -> f64 {
        self.returned
    }
}

impl HostUpdate<'_> {
    /// Time at which a part's gradients are ready, before the end of the backward pass.
    fn ready(&self, part: &UpdatePart) -> f64 {
        if self.recipe.updates_wait() {
            return 0.0;
        }
        let (first, layers) = (self.network.plan.first_on_tape(), self.network.plan.layers.len());
        let left = match part.ready {
            GradientsReady::Head => layers - first,
            GradientsReady::Layer(layer) => layer.saturating_sub(first),
            GradientsReady::End => 0,
        };
        -self.backward_s * left as f64 / (layers - first).max(1) as f64
    }

    /// Seconds of a part's update. The host's memory also gives and takes what is copied, and serves all devices.
    fn work(&self, part: &UpdatePart) -> f64 {
        let elements = part.elements() as f64;
        let bytes = (self.recipe.optimizer.kind.row().update.bytes + 2.0 * ELEMENT) * elements;
        let flops = self.flops * elements / (self.network.trained_elements().max(1)) as f64;
        let seconds = bytes / self.rates.memory_bytes_per_s + flops / self.rates.flops_per_s;
        HANDOVER_S + seconds * self.recipe.batch.devices as f64
    }
}

/// Bytes of the host's memory that the updates of a training on a GPU take: states, and where they are the host's also values, gradients and
/// what an update needs for a moment. All devices together.
pub(super) fn host_bytes(network: &Network, recipe: &Recipe) -> u64 {
    let kind: OptimizerKind = recipe.optimizer.kind;
    let states = state_bytes(&recipe.optimizer, &network.slots);
    let of_device = match (recipe.optimizer.offload.is_none(), kind.is_paged()) {
        (false, _) => states + 2 * 4 * network.trained_elements() + update_bytes(kind, &network.slots),
        (true, true) => states,
        (true, false) => 0,
    };
    of_device * recipe.batch.devices as u64
}

impl DataSheet {
    /// Bytes a second between the device and pinned memory of its host, each way: about four fifths of 16 lanes of its generation of PCI
    /// Express.
    pub(super) fn host_link(&self) -> f64 {
        match self.pcie_generation {
            5.. => 5e10,
            4 => 2.5e10,
            0..=3 => 1.2e10,
        }
    }
}
