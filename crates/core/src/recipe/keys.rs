//! Which settings can change which objective: a recipe's cost key and loss key.
//!
//! Two recipes with the same loss key train to the same held-out loss (up to the rounding of sums taken in another
//! order), and two with the same cost key have the same throughput and peak memory. A trial then needs to measure only
//! what no earlier trial has measured for its keys.
//!
//! The table, setting by setting; whatever is not named here decides both.
//!
//! | setting | cost | loss | reason |
//! |---|---|---|---|
//! | `micro_batch`, `gradient_accumulation`, `devices` at one product | yes | no | gradients are sums over the global batch, normalised by its target tokens; dropout masks are keyed by the place in the global batch |
//! | `gradient_checkpointing` | yes | no | the backward pass computes the same activations again |
//! | paged or not | yes | no | the same arithmetic on states that lie elsewhere |
//! | `alpha`, `rslora`, `alpha_pattern`, `adapter_init` | no | yes | numbers of the same shapes; starting values cost no step |
//! | `init` | whether it is `pissa` | yes | principal components are taken out of the base weights, of which the adapter then needs its own copy |
//! | `dropout` above zero | only that it is | yes | the mask costs the same at any probability |
//! | `learning_rate`, `weight_decay`, `beta1`, `beta2`, `epsilon`, `loraplus_ratio`, schedule, warm-up | no | yes | scalars of the update |
//! | `momentum`, `nesterov` | only whether there is a buffer | where the optimizer has it | the others never read it |
//! | `max_grad_norm` | only that it is set | yes | the norm costs one pass whatever the limit |
//! | training length, evaluation, `shuffle`, `seed`, held-out data | no | yes | how long and on what, not how a step runs |

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{AdapterInit, AdapterSettings, OptimizerKind, OptimizerSettings, Recipe};

/// Two recipes with equal keys share what the key stands for: the first half of the SHA-256 of the settings' canonical JSON,
/// since the JSON itself is over a kilobyte and thousands of keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeKey([u8; 16]);

impl Recipe {
    /// Key of the settings that can change the held-out loss.
    pub fn loss_key(&self) -> RecipeKey {
        // Taking the recipe apart field by field makes a new field a compile error here rather than a wrong key.
        let Self {
            model,
            data,
            adapter,
            precision,
            batch,
            gradient_checkpointing: _,
            optimizer,
            schedule,
            training,
        } = self;
        key(json!({
            "model": model,
            "data": data,
            "adapter": adapter,
            "precision": precision,
            "global_batch": batch.global_batch(),
            "sequence_length": batch.sequence_length,
            "packing": batch.packing,
            "group_by_length": batch.group_by_length,
            "optimizer": optimizer_for_loss(optimizer),
            "schedule": schedule,
            "training": training,
        }))
    }

    /// Key of the settings that can change throughput or peak memory.
    pub fn cost_key(&self) -> RecipeKey {
        let Self {
            model,
            data,
            adapter,
            precision,
            batch,
            gradient_checkpointing,
            optimizer,
            schedule: _,
            training: _,
        } = self;
        let mut data = data.clone();
        data.held_out = super::HeldOut::default();
        key(json!({
            "model": model,
            "data": data,
            "adapter": adapter.as_ref().map(adapter_for_cost),
            "precision": precision,
            "batch": batch,
            "gradient_checkpointing": gradient_checkpointing,
            "optimizer": optimizer.kind,
            "momentum": has_momentum(optimizer.kind) && optimizer.momentum != 0.0,
            "clips": optimizer.max_grad_norm.is_some(),
        }))
    }
}

fn key(value: impl Serialize) -> RecipeKey {
    let text = serde_json::to_string(&value).expect("a recipe holds only values that JSON has");
    let mut half = [0; 16];
    half.copy_from_slice(&Sha256::digest(text)[..16]);
    RecipeKey(half)
}

fn adapter_for_cost(adapter: &AdapterSettings) -> AdapterSettings {
    AdapterSettings {
        alpha: 0.0,
        rslora: false,
        dropout: if adapter.dropout > 0.0 { 1.0 } else { 0.0 },
        init: match adapter.init {
            AdapterInit::Pissa => AdapterInit::Pissa,
            AdapterInit::Kaiming | AdapterInit::Gaussian => AdapterInit::default(),
        },
        alpha_pattern: Default::default(),
        adapter_init: None,
        ..adapter.clone()
    }
}

fn optimizer_for_loss(optimizer: &OptimizerSettings) -> Value {
    let momentum = has_momentum(optimizer.kind);
    json!({
        "kind": unpaged(optimizer.kind),
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "beta1": (!momentum).then_some(optimizer.beta1),
        "beta2": if momentum { None } else { optimizer.beta2 },
        "epsilon": (optimizer.kind != OptimizerKind::Sgd).then_some(optimizer.epsilon),
        "momentum": momentum.then_some(optimizer.momentum),
        "nesterov": momentum && optimizer.nesterov,
        "loraplus_ratio": optimizer.loraplus_ratio,
        "max_grad_norm": optimizer.max_grad_norm,
    })
}

fn has_momentum(kind: OptimizerKind) -> bool {
    matches!(kind, OptimizerKind::Sgd | OptimizerKind::Muon)
}

/// The optimizer that computes the same updates with its states on the device.
fn unpaged(kind: OptimizerKind) -> OptimizerKind {
    match kind {
        OptimizerKind::PagedAdamW => OptimizerKind::AdamW,
        OptimizerKind::PagedAdamW8bit => OptimizerKind::AdamW8bit,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Checkpointing, DataSettings};

    fn recipe() -> Recipe {
        Recipe::new(
            "model",
            DataSettings {
                train: vec!["train.jsonl".into()],
                ..Default::default()
            },
        )
    }

    fn changed(change: impl FnOnce(&mut Recipe)) -> (bool, bool) {
        let (before, mut after) = (recipe(), recipe());
        change(&mut after);
        (
            before.cost_key() != after.cost_key(),
            before.loss_key() != after.loss_key(),
        )
    }

    #[test]
    fn the_split_of_a_global_batch_changes_only_the_cost() {
        let halves = changed(|recipe| {
            recipe.batch.micro_batch /= 2;
            recipe.batch.gradient_accumulation *= 2;
        });
        assert_eq!(halves, (true, false));
        assert_eq!(changed(|recipe| recipe.batch.micro_batch *= 2), (true, true));
    }

    #[test]
    fn checkpointing_and_paging_change_only_the_cost() {
        assert_eq!(
            changed(|recipe| recipe.gradient_checkpointing = Checkpointing::Full),
            (true, false)
        );
        assert_eq!(
            changed(|recipe| recipe.optimizer.kind = OptimizerKind::PagedAdamW),
            (true, false)
        );
    }

    #[test]
    fn scalars_of_the_update_change_only_the_loss() {
        assert_eq!(changed(|recipe| recipe.optimizer.learning_rate = 1.0), (false, true));
        assert_eq!(changed(|recipe| recipe.schedule.warmup = 0.1), (false, true));
        let alpha = changed(|recipe| recipe.adapter.as_mut().unwrap().alpha = 1.0);
        assert_eq!(alpha, (false, true));
    }

    #[test]
    fn settings_that_the_optimizer_never_reads_change_nothing() {
        assert_eq!(changed(|recipe| recipe.optimizer.momentum = 0.5), (false, false));
    }

    #[test]
    fn only_an_adapter_of_principal_components_costs_more_than_others() {
        let init = |init| changed(|recipe| recipe.adapter.as_mut().unwrap().init = init);
        assert_eq!(init(AdapterInit::Gaussian), (false, true));
        assert_eq!(init(AdapterInit::Pissa), (true, true));
    }

    #[test]
    fn rank_and_precision_change_both() {
        assert_eq!(
            changed(|recipe| recipe.adapter.as_mut().unwrap().rank = 2),
            (true, true)
        );
        assert_eq!(
            changed(|recipe| recipe.precision = crate::recipe::Precision::Fp32),
            (true, true)
        );
    }
}
