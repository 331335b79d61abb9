//! What files say of kernels and sharing, as far as several tools have the same words for it.

use super::{Reader, StackFileError, sharing, tables};
use peft_tune_core::predict::stack::{AttentionForm, OptimizerForm, optimizer_form};
use peft_tune_core::recipe::OptimizerKind;

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
    sharing::read(reader);
    Ok(())
}

/// What an optimizer keeps that no recipe has, by its name or class.
pub(super) fn optimizer_named(name: &str) -> OptimizerForm {
    let lower = name.to_lowercase();
    let is_small = lower.contains("8bit") || lower.contains("4bit");
    let kind = match lower.as_str() {
        name if name.contains("lion") => OptimizerKind::Lion,
        name if name.contains("sgd") => OptimizerKind::Sgd,
        name if name.contains("adafactor") => OptimizerKind::Adafactor,
        name if name.contains("muon") => OptimizerKind::Muon,
        _ => OptimizerKind::AdamW,
    };
    let form = optimizer_form(kind, false);
    OptimizerForm {
        states: if is_small { 0 } else { form.states },
        bytes: if is_small { form.states } else { 0 },
        is_paged: lower.contains("paged") || lower.contains("cpuoffload"),
        ..form
    }
}
