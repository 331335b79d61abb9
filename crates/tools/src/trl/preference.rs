//! What TRL's file says of trainings on preferences, and the script for the trainer that `trl` (1.16) has no command for.

use crate::export::draft::{Draft, Word};
use peft_tune_core::recipe::{Checkpointing, Recipe, ReferencePass, TrainerKind};

/// Trainers of preferences, each with its file.
pub(super) const FILES: &[(TrainerKind, &str)] = &[
    (TrainerKind::Dpo, "trl_dpo.yaml"),
    (TrainerKind::Kto, "trl_kto.yaml"),
    (TrainerKind::Orpo, "trl_orpo.yaml"),
];

const SCRIPT: (&str, &str) = ("trl_orpo.py", include_str!("trl_orpo.py"));

/// Command that a file is started with, without its name.
pub(super) fn usage(trainer: TrainerKind) -> &'static str {
    match trainer {
        TrainerKind::Sft => "trl sft --config",
        TrainerKind::Dpo => "trl dpo --config",
        TrainerKind::Kto => "trl kto --config",
        TrainerKind::Orpo => "python trl_orpo.py --config",
    }
}

/// File beside the YAML that starts the trainer, where `trl` does not.
pub(super) fn script(trainer: TrainerKind) -> Option<(&'static str, String)> {
    let (name, text) = SCRIPT;
    (trainer == TrainerKind::Orpo).then(|| (name, text.to_owned()))
}

/// Says the trainer's settings.
pub(super) fn say(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.said(&["trainer", "beta", "reference"]);
    if recipe.trainer.is_sft() {
        return;
    }
    draft.key("beta", recipe.beta());
    if recipe.trainer.row().has_reference {
        let is_precomputed = recipe.reference == ReferencePass::Precomputed;
        draft.key("precompute_ref_log_probs", is_precomputed);
    }
    // TRL leaves all dropout out of these trainings where nothing is said.
    let dropout = recipe.adapter.as_ref().map_or(0.0, |adapter| adapter.dropout);
    draft.key("disable_dropout", dropout == 0.0);
}

/// Says how long sequences are, and what the trainer does not do with rows.
pub(super) fn rows(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.say("sequence_length");
    let title = draft.title();
    if recipe.batch.packing {
        draft.warn(
            "batch.packing",
            format!("{title} packs no rows of preferences; set `packing: false`"),
        );
    }
}

/// Words for what is recomputed. The trainer that is no part of `trl` moves nothing to the host.
pub(super) fn checkpointing_words(draft: &mut Draft<'_>, recipe: &Recipe) -> Vec<Word> {
    let is_offloaded = recipe.gradient_checkpointing == Checkpointing::Offload;
    if recipe.trainer != TrainerKind::Orpo || !is_offloaded {
        return draft.checkpointing_words();
    }
    draft.warn(
        "gradient_checkpointing",
        "TRL's ORPOTrainer moves no activations to the host; set `gradient_checkpointing: full`",
    );
    draft
        .words(|keys| (keys.checkpointing)(Checkpointing::Full))
        .unwrap_or_default()
}

/// Word for the order of the rows.
pub(super) fn sampling_words(draft: &mut Draft<'_>, recipe: &Recipe) -> Option<Word> {
    let usual = draft.sampling_words();
    if recipe.batch.group_by_length && !recipe.trainer.is_sft() {
        draft.warn(
            "batch.group_by_length",
            "TRL groups no rows of preferences by length; set `group_by_length: false`",
        );
        return None;
    }
    if recipe.trainer != TrainerKind::Kto {
        return usual;
    }
    if recipe.training.shuffle {
        draft.warn(
            "training.shuffle",
            "TRL's KTO takes rows in the order of the file, as it compares each with the one before it; shuffle the file itself",
        );
    }
    Some(("train_sampling_strategy", "sequential".into()))
}
