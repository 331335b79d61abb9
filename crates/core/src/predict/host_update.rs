//! What updates on the host (`optimizer_offload: host`) cost a training on a GPU: seconds of a step, and bytes of the host's memory.
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

/// What the host of a GPU reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRates {
    /// Bytes a second that all its threads read and write.
    pub memory_bytes_per_s: f64,
    /// FLOP/s of its products in F32.
    pub flops_per_s: f64,
}

impl HostRates {
    /// Of a server that nobody has measured.
    pub const USUAL: Self = Self {
        memory_bytes_per_s: 1e11,
        flops_per_s: 1e12,
    };
}

/// What the update of one step depends on, beside the plan.
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

impl HostUpdate<'_> {
    /// Seconds by which the step is longer than its passes.
    pub(super) fn seconds(&self) -> f64 {
        let plan = &self.network.plan;
        let parts = update_parts(&plan.layout, plan.layers.len());
        // Since the end of the backward pass.
        let (mut arrived, mut updated, mut returned) = (f64::NEG_INFINITY, f64::NEG_INFINITY, 0f64);
        for part in &parts {
            let copy = ELEMENT * part.elements() as f64 / self.link;
            arrived = arrived.max(self.ready(part)) + copy;
            updated = updated.max(arrived) + self.work(part);
            returned = returned.max(updated) + copy;
        }
        returned
    }

    /// When a part's gradients are ready, before the end of the backward pass.
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
        let is_one_of = |names: &[&str]| names.iter().any(|name| self.name.starts_with(name));
        match () {
            () if is_one_of(&["H100", "H200", "B200", "RTX 5090"]) => 5e10,
            () if is_one_of(&["T4", "V100"]) => 1.2e10,
            () => 2.5e10,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::Architecture;
    use crate::predict::{Machine, MemoryCategory, Prediction, Predictor, Setting, Workload, device};
    use crate::recipe::{DataSettings, OptimizerOffload, Precision};

    fn predictor() -> Predictor {
        let config = r#"{"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": true,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}"#;
        let architecture = Architecture::from_json(Path::new("config.json"), config).unwrap();
        Predictor::new(architecture, Machine::DataSheet(device("H100 SXM").unwrap()))
    }

    /// All parameters of a model of 135M.
    fn recipe(kind: OptimizerKind, offload: OptimizerOffload) -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        (recipe.adapter, recipe.precision) = (None, Precision::Bf16);
        (recipe.optimizer.kind, recipe.optimizer.offload) = (kind, offload);
        recipe.batch.micro_batch = 8;
        recipe
    }

    fn predict(predictor: &Predictor, recipe: &Recipe) -> Prediction {
        let workload = Workload::full(recipe.batch.micro_batch, recipe.batch.sequence_length);
        let setting = Setting {
            recipe,
            workload: &workload,
        };
        predictor.predict(&setting).unwrap()
    }

    #[test]
    fn a_gpu_is_rid_of_the_states_and_the_host_has_them_with_values_and_gradients() {
        let predictor = predictor();
        for kind in OptimizerKind::ALL.into_iter().filter(|kind| !kind.is_paged()) {
            let [device, host] = [OptimizerOffload::None, OptimizerOffload::Host]
                .map(|offload| predict(&predictor, &recipe(kind, offload)));
            let states = device.bytes.of(MemoryCategory::OptimizerState);
            assert!(
                states > 0 && host.bytes.of(MemoryCategory::OptimizerState) == 0,
                "{kind:?}"
            );
            // What the update itself takes for a moment is the host's as well.
            assert!(device.peak_bytes() - host.peak_bytes() >= states, "{kind:?}");
            let values = device.bytes.of(MemoryCategory::Adapters);
            assert_eq!(device.host_bytes, 0);
            match kind {
                OptimizerKind::Muon => assert!(host.host_bytes > states + 2 * values),
                _ => assert_eq!(host.host_bytes, states + 2 * values, "{kind:?}"),
            }
        }
        let paged = predict(&predictor, &recipe(OptimizerKind::PagedAdamW, OptimizerOffload::None));
        let unpaged = predict(&predictor, &recipe(OptimizerKind::AdamW, OptimizerOffload::None));
        assert_eq!(paged.host_bytes, unpaged.bytes.of(MemoryCategory::OptimizerState));
    }

    #[test]
    fn what_the_backward_pass_hides_costs_nothing() {
        let seconds = |predictor: &Predictor, change: fn(&mut Recipe)| {
            let mut one = recipe(OptimizerKind::AdamW, OptimizerOffload::Host);
            change(&mut one);
            predict(predictor, &one).seconds.total()
        };
        let predictor = predictor();
        let waits = seconds(&predictor, |_| {});
        let follows = seconds(&predictor, |recipe| recipe.optimizer.max_grad_norm = None);
        let device = seconds(&predictor, |recipe| recipe.optimizer.offload = OptimizerOffload::None);
        assert!(device < follows && follows < waits, "{device} {follows} {waits}");
        // 28 bytes of an element's update and 8 of its copies, at 100 GB/s, and the first and last copies of a part.
        let elements = 134_515_008.0;
        let update = elements * 36.0 / 1e11;
        assert!(
            (update..1.2 * update).contains(&(waits - device)),
            "{} {update}",
            waits - device
        );
        // A faster host, and a host without an end.
        let faster = |memory_bytes_per_s| {
            let rates = HostRates {
                memory_bytes_per_s,
                ..HostRates::USUAL
            };
            seconds(&predictor.clone().with_host(rates), |recipe| {
                recipe.optimizer.max_grad_norm = None
            })
        };
        assert!(faster(4e11) < follows);
        // Whatever the host: the embedding comes and goes behind the pass, at 50 GB/s, and the layers before it in part.
        let (embedding, all) = (2.0 * 4.0 * 49_152.0 * 576.0 / 5e10, 2.0 * 4.0 * elements / 5e10);
        let left = faster(f64::INFINITY) - device;
        assert!((embedding..all).contains(&left), "{left} {embedding} {all}");
    }
}
