//! What transformers' Trainer holds, read from transformers 5.23, PEFT 0.21 and bitsandbytes 0.50.

use crate::tools::Tool;
use crate::tools::import::setting::{adapters, config};
use crate::tools::import::{Keys, StackConfig, StackFileError};
use peft_tune_core::predict::stack::{Number, StackBehaviour, StackSetting, WeightForm};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    ..StackBehaviour::PLAIN
};

/// Reads what a tool needs for an adapter; its file says nothing else of a training.
///
/// # Errors
/// A value that the tool would not take.
pub(in crate::tools) fn setting(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let mut setting = StackSetting::new(tool.behaviour(), WeightForm::Numbers);
    setting.loads = Number::Half;
    setting.trains = adapters(
        keys,
        ["r", "lora_dropout", "modules_to_save"],
        8,
        keys.names("target_modules")?,
    )?;
    let mut config = config(setting, keys.text("base_model_name_or_path")?, keys)?;
    config.notes.push(
        "an adapter's config says nothing of batch, length and dtype: one row of 1024 tokens in bf16 is assumed".into(),
    );
    Ok(config)
}
