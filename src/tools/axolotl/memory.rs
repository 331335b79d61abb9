//! What axolotl holds, read from axolotl 0.19.

use super::keys::{LIGER, LIGER_KERNELS};
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
    unproven: Some("no measurement of axolotl was compared"),
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
    let mut kernels = LIGER_KERNELS.into_iter();
    // All are looked at, so that none is told as one that nobody reads.
    let has_all = kernels.try_fold(true, |all, key| is_on(key).map(|this| all && this))?;
    if plugins.contains(LIGER) && has_all {
        reader.recipe.torch.use_liger_kernel = true;
        reader.said("use_liger_kernel");
    }
    reader.choices.fused_lora = is_on("lora_qkv_kernel")? && is_on("lora_mlp_kernel")?;
    Ok(())
}
