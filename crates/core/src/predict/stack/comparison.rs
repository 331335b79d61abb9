//! [`Comparison`]: the sequences of a micro-batch that learns preferences, and the passes beside the one that is trained by.
//!
//! A micro-batch of b rows takes in TRL
//!
//! | trainer | before | with gradients | behind, by the reference |
//! |---|---|---|---|
//! | `dpo` | | 2 b: chosen answers and rejected ones | the same 2 b |
//! | `kto` | b: answers of other rows | b | both b |
//! | `orpo` | | 2 b | |
//!
//! A reference that is asked before the training is no part of a step. All sequences are padded to the longest, and the answers of
//! other rows are taken as long as the rows themselves.
//!
//! Sources: `trl/trainer/dpo_trainer.py`, `trl/trainer/kto_trainer.py` and `trl/experimental/orpo/orpo_trainer.py` as of July 2026;
//! since TRL 1.15 the first two score tokens by the tiled head (release notes), and the third one by logits.

use serde::Serialize;

use crate::recipe::{Recipe, TrainerKind};

/// Sequences of a micro-batch, and the passes beside the one that is trained by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Sequences of a row.
    pub sequences: u64,
    /// Fewest rows of a micro-batch.
    pub least_rows: u64,
    /// Passes of the model itself without gradients, before the one with them.
    pub own_passes: u64,
    /// Passes of the frozen reference, beside all that the pass with gradients keeps.
    pub reference_passes: u64,
    /// Whether the reference is a model of its own, and not the trained one with its adapter off.
    pub has_copy: bool,
}

impl Comparison {
    /// Absence of any: answers are learnt as they stand.
    pub const NONE: Self = Self {
        sequences: 1,
        least_rows: 1,
        own_passes: 0,
        reference_passes: 0,
        has_copy: false,
    };

    /// Comparison that the trainer of a recipe makes.
    pub fn of(recipe: &Recipe) -> Self {
        let row = recipe.trainer.row();
        let (own_passes, of_reference) = match recipe.trainer {
            TrainerKind::Sft | TrainerKind::Orpo => (0, 0),
            TrainerKind::Dpo => (0, 1),
            TrainerKind::Kto => (1, 2),
        };
        let is_asked = row.has_reference && recipe.reference.is_each_step();
        Self {
            sequences: recipe.trainer.sequences() as u64,
            least_rows: row.least_micro_batch as u64,
            own_passes,
            reference_passes: if is_asked { of_reference } else { 0 },
            has_copy: is_asked && recipe.adapter.is_none(),
        }
    }

    /// Whether nothing is compared.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{DataSettings, ReferencePass};

    fn of(trainer: TrainerKind, change: impl FnOnce(&mut Recipe)) -> Comparison {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.trainer = trainer;
        change(&mut recipe);
        Comparison::of(&recipe)
    }

    #[test]
    fn pairs_are_two_sequences_and_a_reference_that_was_asked_before_is_no_pass() {
        assert!(of(TrainerKind::Sft, |_| {}).is_none());
        let passes = |trainer, reference| {
            let found = of(trainer, |recipe| recipe.reference = reference);
            (found.sequences, found.own_passes, found.reference_passes)
        };
        let (each, before) = (ReferencePass::EachStep, ReferencePass::Precomputed);
        assert_eq!(passes(TrainerKind::Dpo, each), (2, 0, 1));
        assert_eq!(passes(TrainerKind::Dpo, before), (2, 0, 0));
        assert_eq!(passes(TrainerKind::Kto, each), (1, 1, 2));
        assert_eq!(passes(TrainerKind::Kto, before), (1, 1, 0));
        assert_eq!(passes(TrainerKind::Orpo, each), (2, 0, 0));
    }

    #[test]
    fn the_reference_of_a_model_that_trains_whole_is_a_copy() {
        let whole = |trainer| of(trainer, |recipe| recipe.adapter = None).has_copy;
        assert!(whole(TrainerKind::Dpo) && whole(TrainerKind::Kto) && !whole(TrainerKind::Orpo));
        assert!(!of(TrainerKind::Dpo, |_| {}).has_copy);
    }
}
