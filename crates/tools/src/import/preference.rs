//! Trainings on preferences: what their trainer has beside one of answers, and what it does otherwise with rows and batches. Trials of
//! them run in TRL, whichever tool the file is of.

use serde_json::Value;

use super::{Keys, Reader, StackFileError};
use crate::Tool;
use peft_tune_core::recipe::{DataFormat, LossOn, ReferencePass, TemplateTargets, TrainerKind};

/// Losses that a recipe's trainers have in TRL.
const LOSSES: &[(TrainerKind, &str)] = &[(TrainerKind::Dpo, "sigmoid"), (TrainerKind::Kto, "kto")];

/// Columns of pairs, and of answers that are good or bad.
const OF_PAIRS: [&str; 3] = ["prompt", "chosen", "rejected"];
const OF_ANSWERS: [&str; 3] = ["prompt", "completion", "label"];

/// Keys of what good and bad answers weigh: TRL's, axolotl's and LLaMA-Factory's.
const WEIGHTS: [&str; 6] = [
    "desirable_weight",
    "undesirable_weight",
    "kto_desirable_weight",
    "kto_undesirable_weight",
    "kto_chosen_weight",
    "kto_rejected_weight",
];

/// Reads the settings of a trainer in TRL's words.
///
/// # Errors
/// A loss that the trainer has in TRL, and not here; a value of another kind.
pub(crate) fn read(reader: &mut Reader<'_>, trainer: TrainerKind) -> Result<(), StackFileError> {
    reader.recipe.trainer = trainer;
    if trainer.is_sft() {
        return Ok(());
    }
    let keys = reader.keys;
    factor(reader, keys, &["beta"])?;
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
                "no trainer here has that loss: leave it out for the trainer's own",
            ));
        }
    }
    reference(reader)
}

/// Reads the factor of the comparison, which the first of some keys has that is there.
///
/// # Errors
/// A value that is no number above 0.
pub(crate) fn factor(reader: &mut Reader<'_>, part: &Keys<'_>, names: &[&str]) -> Result<(), StackFileError> {
    match names.iter().find(|name| part.has(name)) {
        Some(name) if !reader.recipe.trainer.is_sft() => reader.value("beta", name, part),
        _ => Ok(()),
    }
}

/// Reads when the reference is asked, by the key of TRL's trainers.
///
/// # Errors
/// A value that is neither true nor false.
pub(crate) fn reference(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let is_precomputed = reader.keys.flag("precompute_ref_log_probs")?.unwrap_or(false);
    if is_precomputed && reader.recipe.trainer.row().has_reference {
        reader.recipe.reference = ReferencePass::Precomputed;
        reader.said("reference");
    }
    Ok(())
}

/// Gives a training on preferences the rows that its trainer compares, and takes out what TRL's trainers of them do without.
///
/// # Errors
/// A value that is neither true nor false.
pub(super) fn settle(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let trainer = reader.recipe.trainer;
    let Some(format) = trainer.row().rows else {
        return Ok(());
    };
    reader.said("trainer");
    let data = &mut reader.recipe.data;
    data.format = format;
    (data.loss_on, data.template_targets) = (LossOn::default(), TemplateTargets::default());
    let columns = if format == DataFormat::Preference {
        OF_PAIRS
    } else {
        OF_ANSWERS
    };
    data.columns.retain(|name, _| columns.contains(&name.as_str()));
    if data.chat_template.take().is_some() {
        reader.note(format!(
            "trials of `trainer: {trainer}` write chats by the template of the model's tokenizer alone: put yours there"
        ));
    }
    if std::mem::take(&mut reader.recipe.batch.packing) {
        reader.note(format!(
            "trials of `trainer: {trainer}` pack no rows: `packing` is left out"
        ));
    }
    if std::mem::take(&mut reader.recipe.batch.group_by_length) {
        reader.note(format!(
            "trials of `trainer: {trainer}` put no rows of like length together: `group_by_length` is left out"
        ));
    }
    // Rows are compared with the one before them.
    reader.recipe.training.shuffle &= trainer != TrainerKind::Kto;
    least_rows(reader);
    weights(reader)?;
    dropout(reader)
}

/// Tells of good and bad answers that do not weigh the same.
fn weights(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    for key in WEIGHTS {
        if let Some(weight) = keys.number(key)?.filter(|weight| *weight != 1.0) {
            reader.note(format!(
                "`{key}: {weight}` is left out: good and bad answers weigh the same in trials"
            ));
        }
    }
    Ok(())
}

/// Takes as many rows for a micro-batch as the trainer needs, of the same global batch as far as that can be.
fn least_rows(reader: &mut Reader<'_>) {
    let trainer = reader.recipe.trainer;
    let least = trainer.row().least_micro_batch;
    let batch = &mut reader.recipe.batch;
    if batch.micro_batch >= least {
        return;
    }
    let rows = batch.micro_batch * batch.gradient_accumulation;
    (batch.micro_batch, batch.gradient_accumulation) = (least, (rows / least).max(1));
    let told =
        format!("`trainer: {trainer}` compares the rows of a micro-batch with one another: {least} are taken for it");
    reader.note(told.clone());
    reader.assume(told);
}

/// Turns dropout off, as TRL's trainers do unless they are told not to, and those that are made of them.
fn dropout(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let is_kept = reader.keys.flag("disable_dropout")? == Some(false) || reader.tool == Tool::Torchtune;
    let is_said = reader.has_said("dropout");
    let Some(adapter) = reader
        .recipe
        .adapter
        .as_mut()
        .filter(|adapter| adapter.dropout > 0.0 && !is_kept)
    else {
        return Ok(());
    };
    adapter.dropout = 0.0;
    if is_said {
        reader.note("dropout is off in that trainer where nothing else is said (`disable_dropout`): trials do without");
    }
    Ok(())
}
