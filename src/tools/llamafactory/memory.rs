//! What LLaMA-Factory holds, read from LLaMA-Factory 0.9.5.

use crate::tools::Tool;
use crate::tools::import::setting::{
    adapters, attention, config, numbers, optimizer, packing_note, recompute, sharing,
};
use crate::tools::import::{Keys, StackConfig, StackFileError};
use peft_tune_core::predict::stack::{
    HostUpdates, LossForm, Raised, Recompute, StackBehaviour, StackSetting, Trains, WeightForm,
};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    pads_to: 8,
    autocast: true,
    raises: Raised::Nothing,
    recompute: Recompute::Layers,
    foreach: false,
    host_updates: HostUpdates::DeepSpeed,
    ..StackBehaviour::PLAIN
};

/// Reads what a file needs.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn setting(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let is_double = keys.flag("double_quantization")?.unwrap_or(true);
    let weights = match keys.count("quantization_bit")? {
        None => WeightForm::Numbers,
        Some(4) if is_double => WeightForm::Nf4Double,
        Some(4) => WeightForm::Nf4,
        Some(8) => WeightForm::Int8,
        Some(bits) => return Err(keys.wrong("quantization_bit", &bits.into(), "write 4 or 8")),
    };
    let mut setting = StackSetting::new(tool.behaviour(), weights);
    numbers(keys, &mut setting, None)?;
    setting.micro_batch = keys.count("per_device_train_batch_size")?.unwrap_or(8);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    setting.sequence_length = keys.count("cutoff_len")?.unwrap_or(2048);
    let is_on = !keys.flag("disable_gradient_checkpointing")?.unwrap_or(false);
    setting.recompute = recompute(is_on, keys.flag("use_unsloth_gc")?.unwrap_or(false));
    let form = keys.text("finetuning_type")?.unwrap_or_else(|| "lora".into());
    setting.trains = match form.as_str() {
        "full" => Trains::Everything,
        "lora" => adapters(
            keys,
            ["lora_rank", "lora_dropout", "additional_target"],
            8,
            keys.names("lora_target")?,
        )?,
        _ => {
            return Err(keys.wrong(
                "finetuning_type",
                &form.into(),
                "write lora or full: nothing else is predicted",
            ));
        }
    };
    setting.optimizer = optimizer(keys, "optim", "adamw_torch")?;
    attention(&mut setting, keys.text("flash_attn")?.as_deref());
    if keys.flag("enable_liger_kernel")?.unwrap_or(false) {
        setting.fused = true;
        setting.loss = LossForm::FusedLinear;
        setting.holds_logits = false;
    }
    sharing(keys, &mut setting)?;
    let mut config = config(setting, keys.text("model_name_or_path")?, keys)?;
    packing_note(keys, "packing", &mut config)?;
    Ok(config)
}
