//! What files say of kernels and sharing, as far as several tools have the same words for it.

use serde_json::Value;

use super::passed_over::is_off;
use super::{Keys, Reader, StackFileError, tables};
use peft_tune_core::predict::stack::{AttentionForm, OptimizerForm, Sharing, optimizer_form};
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
    reader.choices.offloads = stage.contains("offload") || uses_fsdp && fsdp_offloads(keys);
}

/// Keys of FSDP's settings that have what is shared out lie in the host's memory, in their older and newer words.
const OFFLOADS: [&str; 3] = ["offload_params", "fsdp_offload_params", "cpu_offload"];

/// Whether FSDP's keys have what is shared out lie in the host's memory.
fn fsdp_offloads(keys: &Keys<'_>) -> bool {
    let words = keys.raw("fsdp").map(Value::to_string).unwrap_or_default();
    let config = keys.raw("fsdp_config").and_then(Value::as_object);
    let is_on = |key: &&str| {
        config
            .and_then(|config| config.get(*key))
            .is_some_and(|value| !is_off(value))
    };
    words.contains("offload") || OFFLOADS.iter().any(is_on)
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
