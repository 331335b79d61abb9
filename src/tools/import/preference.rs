//! What a trainer of preferences learns, in the words of TRL's settings.

use serde_json::Value;

use super::{Reader, StackFileError};
use peft_tune_core::recipe::{ReferencePass, TrainerKind};

/// Losses that a recipe's trainer has.
const LOSSES: &[(TrainerKind, &str)] = &[(TrainerKind::Dpo, "sigmoid"), (TrainerKind::Kto, "kto")];

/// Reads the trainer of a script, with its own settings.
///
/// # Errors
/// A loss that the trainer has in TRL, and not here; a value of another kind.
pub(in crate::tools) fn read(reader: &mut Reader<'_>, trainer: TrainerKind) -> Result<(), StackFileError> {
    reader.recipe.trainer = trainer;
    if trainer.is_sft() {
        return Ok(());
    }
    reader.said("trainer");
    let keys = reader.keys;
    reader.value("beta", "beta", keys)?;
    if keys.flag("precompute_ref_log_probs")?.unwrap_or(false) {
        reader.recipe.reference = ReferencePass::Precomputed;
        reader.said("reference");
    }
    let usual = LOSSES.iter().find(|(kind, _)| *kind == trainer).map(|(_, loss)| *loss);
    if let (Some(found), Some(usual)) = (keys.raw("loss_type"), usual) {
        let is_usual = match found {
            Value::Array(all) => all.iter().all(|loss| loss == usual),
            one => one == usual,
        };
        if !is_usual {
            return Err(keys.wrong(
                "loss_type",
                found,
                "no backend here has that loss: leave it out for the trainer's own",
            ));
        }
    }
    Ok(())
}
