//! What axolotl holds, read from axolotl 0.19.

use crate::tools::import::{Reader, StackFileError, choices};
use peft_tune_core::predict::stack::{AttentionForm, HostUpdates, LossForm, Raised, StackBehaviour};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    pads_to: 64,
    autocast: true,
    raises: Raised::Nothing,
    foreach: false,
    says_sharding: true,
    host_updates: HostUpdates::DeepSpeed,
    ..StackBehaviour::PLAIN
};

/// Reads what a file says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    choices::of_trainer(reader, "attn_implementation")?;
    let keys = reader.keys;
    let is_on = |key: &str| keys.flag(key).map(|flag| flag.unwrap_or(false));
    if is_on("flash_attention")? {
        reader.choices.attention = Some(AttentionForm::Flash);
    }
    let plugins = keys.names("plugins")?.unwrap_or_default().join(" ");
    if plugins.contains("cut_cross_entropy") || is_on("liger_fused_linear_cross_entropy")? {
        reader.choices.loss = Some(LossForm::FusedLinear);
    }
    reader.choices.fused = plugins.contains("liger");
    reader.choices.fused_lora = is_on("lora_qkv_kernel")? && is_on("lora_mlp_kernel")?;
    Ok(())
}
