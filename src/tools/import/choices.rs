//! What files say of kernels and sharing, as far as several tools have the same words for it.

use super::passed_over::is_off;
use super::{Reader, StackFileError, tables};
use peft_tune_core::predict::stack::{AttentionForm, Sharing};

/// Reads the choices of all tools on transformers' Trainer, whose form of attention has the name `attention`.
///
/// # Errors
/// A value that is no text.
pub(in crate::tools) fn of_trainer(reader: &mut Reader<'_>, attention: &str) -> Result<(), StackFileError> {
    let name = reader.keys.text(attention)?;
    reader.choices.attention = match name.as_deref() {
        Some("eager" | "disabled") => Some(AttentionForm::Eager),
        Some(name) if name.contains("flash") || name == "fa2" => Some(AttentionForm::Flash),
        Some("sdpa") => Some(AttentionForm::Sdpa),
        _ => None,
    };
    let open = reader.tool.keys().attention_where_open(reader.recipe.batch.packing);
    // What an export writes for a recipe that leaves it open is no choice.
    if let Some(kind) = tables::attention(reader.keys, reader.tool).filter(|kind| *kind != open) {
        reader.recipe.torch.attn_implementation = kind;
        reader.said("attn_implementation");
    }
    sharing(reader);
    Ok(())
}

/// DeepSpeed's and FSDP's stage, by the name of the file that is given or by the keys.
fn sharing(reader: &mut Reader<'_>) {
    let keys = reader.keys;
    let is_on = |key: &str| keys.raw(key).is_some_and(|value| !is_off(value));
    let uses_fsdp = [is_on("fsdp"), is_on("fsdp_config")].contains(&true);
    // Settings of DeepSpeed that are written out in the file have no name.
    let stage = keys.text("deepspeed").ok().flatten().unwrap_or_default();
    reader.choices.sharing = match stage.as_str() {
        stage if stage.contains("zero1") || stage.contains("z1") => Some(Sharing::Zero1),
        stage if stage.contains("zero2") || stage.contains("z2") => Some(Sharing::Zero2),
        stage if stage.contains("zero3") || stage.contains("z3") => Some(Sharing::Zero3),
        _ => uses_fsdp.then_some(Sharing::Full),
    };
    reader.choices.offloads = stage.contains("offload");
}
