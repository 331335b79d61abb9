//! What files say of kernels and sharing, as far as several tools have the same words for it.

use super::{Reader, StackFileError, sharing, tables};
use peft_tune_core::predict::stack::AttentionForm;

/// Reads the choices of all tools on transformers' Trainer, whose form of attention has the name `attention`.
///
/// # Errors
/// A value that is no text.
pub(crate) fn of_trainer(reader: &mut Reader<'_>, attention: &str) -> Result<(), StackFileError> {
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
    sharing::read(reader);
    Ok(())
}
