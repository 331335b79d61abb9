//! What axolotl holds, read from axolotl 0.19.

use crate::tools::Tool;
use crate::tools::import::setting::{
    adapters, attention, bitsandbytes, config, numbers, optimizer, packing_note, recompute, sharing,
};
use crate::tools::import::{Keys, StackConfig, StackFileError};
use peft_tune_core::predict::stack::{
    AttentionForm, HostUpdates, LossForm, Raised, StackBehaviour, StackSetting, Trains, WeightForm,
};

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

/// Reads what a file needs.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn setting(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let weights = bitsandbytes(keys, "bnb_4bit_use_double_quant")?;
    // `adapter: qlora` quantizes with double quantization where nothing else is said.
    let is_qlora = keys.text("adapter")?.as_deref() == Some("qlora");
    let weights = match weights {
        WeightForm::Nf4 => WeightForm::Nf4Double,
        WeightForm::Numbers if is_qlora => WeightForm::Nf4Double,
        other => other,
    };
    let mut setting = StackSetting::new(tool.behaviour(), weights);
    numbers(keys, &mut setting, None)?;
    setting.micro_batch = keys.count("micro_batch_size")?.unwrap_or(1);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    setting.sequence_length = keys.count("sequence_len")?.unwrap_or(512);
    let form = keys.text("gradient_checkpointing")?.unwrap_or_else(|| "false".into());
    let is_offloaded = form.starts_with("offload") || keys.flag("activation_offloading")?.unwrap_or(false);
    setting.recompute = recompute(form != "false", is_offloaded);
    let targets = match keys.flag("lora_target_linear")?.unwrap_or(false) {
        true => Some(vec!["all-linear".to_owned()]),
        false => keys.names("lora_target_modules")?,
    };
    setting.trains = match keys.has("adapter") {
        true => adapters(keys, ["lora_r", "lora_dropout", "lora_modules_to_save"], 8, targets)?,
        false => Trains::Everything,
    };
    setting.optimizer = optimizer(keys, "optimizer", "adamw_torch_fused")?;
    attention(&mut setting, keys.text("attn_implementation")?.as_deref());
    if keys.flag("flash_attention")?.unwrap_or(false) {
        setting.attention = AttentionForm::Flash;
    }
    let plugins = keys.names("plugins")?.unwrap_or_default().join(" ");
    if plugins.contains("cut_cross_entropy") || keys.flag("liger_fused_linear_cross_entropy")?.unwrap_or(false) {
        setting.loss = LossForm::FusedLinear;
        setting.holds_logits = false;
    }
    setting.fused |= plugins.contains("liger");
    setting.fused_lora =
        keys.flag("lora_qkv_kernel")?.unwrap_or(false) && keys.flag("lora_mlp_kernel")?.unwrap_or(false);
    sharing(keys, &mut setting)?;
    let mut config = config(setting, keys.text("base_model")?, keys)?;
    packing_note(keys, "sample_packing", &mut config)?;
    Ok(config)
}
