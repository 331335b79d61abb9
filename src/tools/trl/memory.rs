//! What TRL's SFTTrainer holds, read from TRL 1.16.

use crate::tools::Tool;
use crate::tools::import::setting::{
    adapters, attention, bitsandbytes, config, numbers, optimizer, packing_note, recompute, sharing,
};
use crate::tools::import::{Keys, StackConfig, StackFileError};
use peft_tune_core::predict::stack::{
    HostUpdates, LossForm, Number, Raised, Recompute, StackBehaviour, StackSetting, Trains, WeightForm,
};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    loads: Number::F32,
    autocast: true,
    raises: Raised::Nothing,
    adapters: [Number::F32, Number::Half],
    loss: LossForm::Tiled,
    recompute: Recompute::Layers,
    holds_logits: false,
    foreach: false,
    host_updates: HostUpdates::DeepSpeed,
    ..StackBehaviour::PLAIN
};

/// Reads what a file needs.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn setting(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let mut config = of_trainer(tool, keys)?;
    if dtype(keys)?.is_none() && config.setting.weights == WeightForm::Numbers {
        config
            .notes
            .push("no `dtype`: trl sft loads the weights in F32, which takes twice the memory; write bfloat16".into());
    }
    packing_note(keys, "packing", &mut config)?;
    Ok(config)
}

fn dtype(keys: &Keys<'_>) -> Result<Option<String>, StackFileError> {
    Ok(keys.text("dtype")?.or(keys.text("torch_dtype")?))
}

/// Reads the arguments of SFTTrainer, which unsloth's scripts have too.
///
/// # Errors
/// A value that the tool would not take.
pub(in crate::tools) fn of_trainer(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let weights = bitsandbytes(keys, "use_bnb_nested_quant")?;
    let mut setting = StackSetting::new(tool.behaviour(), weights);
    numbers(keys, &mut setting, dtype(keys)?.as_deref())?;
    setting.micro_batch = keys.count("per_device_train_batch_size")?.unwrap_or(8);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    setting.sequence_length = keys
        .count("max_length")?
        .or(keys.count("max_seq_length")?)
        .unwrap_or(1024);
    let own = keys.text("use_gradient_checkpointing")?;
    let is_on = keys
        .flag("gradient_checkpointing")?
        .unwrap_or(own.as_deref() != Some("false"));
    let is_offloaded = keys
        .flag("activation_offloading")?
        .unwrap_or(own.as_deref() == Some("unsloth"));
    setting.recompute = recompute(is_on, is_offloaded);
    let uses_adapters = keys.flag("use_peft")?.unwrap_or(keys.has("lora_r"));
    let is_script = keys.has("r") && !keys.has("lora_r");
    setting.trains = match uses_adapters || is_script {
        true if is_script => adapters(
            keys,
            ["r", "lora_dropout", "modules_to_save"],
            16,
            keys.names("target_modules")?,
        )?,
        true => {
            let targets = keys.names("lora_target_modules")?;
            adapters(keys, ["lora_r", "lora_dropout", "lora_modules_to_save"], 16, targets)?
        }
        false => Trains::Everything,
    };
    setting.optimizer = optimizer(keys, "optim", "adamw_torch_fused")?;
    attention(&mut setting, keys.text("attn_implementation")?.as_deref());
    setting.fused |= keys.flag("use_liger_kernel")?.unwrap_or(false);
    sharing(keys, &mut setting)?;
    let model = keys.text("model_name_or_path")?.or(keys.text("model_name")?);
    config(setting, model, keys)
}
