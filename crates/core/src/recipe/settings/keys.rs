//! A recipe's cost key and loss key: the settings that can change its cost, and those that can change its loss.
//!
//! Two recipes with the same loss key train to the same held-out loss (up to the rounding of sums taken in another
//! order), and two with the same cost key have the same throughput and peak memory. A trial then needs to measure only
//! what no earlier trial has measured for its keys.
//!
//! A key holds what the rows of the table, and the fields without a row, say that the outcome depends on. It is made when
//! it is needed and never stored.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::unsearched::json;
use super::{Outcome, settings, unsearched};
use crate::recipe::Recipe;

/// Two recipes with equal keys share what the key stands for: the first half of the SHA-256 of the settings' canonical JSON,
/// since the JSON itself is over a kilobyte and thousands of keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeKey([u8; 16]);

impl Recipe {
    /// Key of the settings that can change the held-out loss.
    pub fn loss_key(&self) -> RecipeKey {
        self.key(&[Outcome::Loss])
    }

    /// Key of the settings that can change throughput or peak memory.
    pub fn cost_key(&self) -> RecipeKey {
        // Where gradients decide how many steps take longer, all that changes gradients changes the cost.
        if self.precision_schedule.is_adaptive() {
            return self.key(&Outcome::ALL);
        }
        self.key(&[Outcome::Throughput, Outcome::PeakMemory])
    }

    /// Key of the settings that can change one of some outcomes.
    pub fn key(&self, outcomes: &[Outcome]) -> RecipeKey {
        let mut parts: Vec<(&str, Value)> = Vec::new();
        for row in settings().filter(|row| row.derived_from.is_none()) {
            let of_row = outcomes.iter().filter_map(|outcome| row.part(self, *outcome));
            parts.extend(of_row.map(|part| (row.name, json(&part))));
        }
        for field in unsearched(self) {
            if outcomes.iter().any(|outcome| field.can_change(*outcome)) {
                parts.push((field.field, field.value));
            }
        }
        let text = json(&parts).to_string();
        let mut half = [0; 16];
        half.copy_from_slice(&Sha256::digest(text)[..16]);
        RecipeKey(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{AdapterInit, Checkpointing, DataSettings, OptimizerKind, OptimizerSettings};

    fn recipe() -> Recipe {
        Recipe::new(
            "model",
            DataSettings {
                train: "train.jsonl".into(),
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
        let of = |kind, change: fn(&mut OptimizerSettings)| {
            let (mut before, mut after) = (recipe(), recipe());
            (before.optimizer.kind, after.optimizer.kind) = (kind, kind);
            change(&mut after.optimizer);
            before.loss_key() != after.loss_key()
        };
        assert!(!of(OptimizerKind::Lion, |optimizer| optimizer.epsilon = 1e-6));
        assert!(!of(OptimizerKind::Adafactor, |optimizer| optimizer.beta1 = 0.5));
        assert!(!of(OptimizerKind::Muon, |optimizer| optimizer.nesterov = true));
        assert!(of(OptimizerKind::Sgd, |optimizer| optimizer.nesterov = true));
    }

    #[test]
    fn muon_reads_the_constants_of_adamw_where_vectors_train() {
        let change = |prepare: fn(&mut Recipe)| {
            let (mut before, mut after) = (recipe(), recipe());
            for recipe in [&mut before, &mut after] {
                recipe.optimizer.kind = OptimizerKind::Muon;
                prepare(recipe);
            }
            after.optimizer.beta2 = Some(0.9);
            before.loss_key() != after.loss_key()
        };
        assert!(!change(|_| ()));
        assert!(change(|recipe| recipe.adapter.as_mut().unwrap().dora = true));
        assert!(change(|recipe| recipe.adapter = None));
    }

    #[test]
    fn only_an_adapter_of_principal_components_costs_more_than_others() {
        let init = |init| changed(|recipe| recipe.adapter.as_mut().unwrap().init = init);
        assert_eq!(init(AdapterInit::Gaussian), (false, true));
        assert_eq!(init(AdapterInit::Pissa), (true, true));
    }

    #[test]
    fn only_trainers_of_preferences_read_their_settings() {
        use crate::recipe::{ReferencePass, TrainerKind};
        assert_eq!(changed(|recipe| recipe.beta = Some(0.5)), (false, false));
        assert_eq!(changed(|recipe| recipe.trainer = TrainerKind::Dpo), (true, true));
        let of = |trainer, change: fn(&mut Recipe)| {
            let (mut before, mut after) = (recipe(), recipe());
            (before.trainer, after.trainer) = (trainer, trainer);
            change(&mut after);
            (
                before.cost_key() != after.cost_key(),
                before.loss_key() != after.loss_key(),
            )
        };
        assert_eq!(of(TrainerKind::Orpo, |recipe| recipe.beta = Some(0.5)), (false, true));
        let precomputed: fn(&mut Recipe) = |recipe| recipe.reference = ReferencePass::Precomputed;
        assert_eq!(of(TrainerKind::Dpo, precomputed), (true, false));
        assert_eq!(of(TrainerKind::Orpo, precomputed), (false, false));
        // The drift that KTO takes off is that of a moment's micro-batches.
        let halves: fn(&mut Recipe) = |recipe| {
            recipe.batch.micro_batch /= 2;
            recipe.batch.devices *= 2;
        };
        assert_eq!(of(TrainerKind::Dpo, halves), (true, false));
        assert_eq!(of(TrainerKind::Kto, halves), (true, true));
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
