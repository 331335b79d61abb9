//! What torchtune holds, read from torchtune 0.6.

use crate::tools::Tool;
use crate::tools::import::setting::{adapters, config, numbers, optimizer_of, recompute};
use crate::tools::import::{Keys, StackConfig, StackFileError};
use peft_tune_core::predict::stack::{
    HostUpdates, LossForm, Number, Raised, Recompute, StackBehaviour, StackRefusal, StackSetting, Trains, Unable,
    WeightForm,
};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    autocast: false,
    raises: Raised::Nothing,
    adapters: [Number::Half, Number::Half],
    loss: LossForm::Chunked(8),
    recompute: Recompute::Nothing,
    holds_logits: false,
    foreach: false,
    // It takes y as it is.
    dora_drops_inputs: false,
    host_updates: HostUpdates::PagedAdamW,
    refuses: &[
        StackRefusal {
            of: Unable::Experts,
            what: "it has no recipe for mixtures of experts",
            instead: "export for `trl` or `axolotl`",
        },
        StackRefusal {
            of: Unable::Int8,
            what: "its quantized base is NF4 only",
            instead: "take nf4_double or bf16",
        },
    ],
    ..StackBehaviour::PLAIN
};

/// Reads what a file needs.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn setting(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    if !keys.has("model") {
        return crate::tools::peft::memory::setting(tool, keys);
    }
    let Some(model) = keys.part("model", "model.") else {
        return Err(keys.wrong("model", &serde_json::Value::Null, "write the model's `_component_`"));
    };
    let component = model.text("_component_")?.unwrap_or_default();
    let is_quantized = component.contains("qlora") || model.flag("quantize_base")?.unwrap_or(false);
    let weights = if is_quantized {
        WeightForm::Nf4Double
    } else {
        WeightForm::Numbers
    };
    let mut setting = StackSetting::new(tool.behaviour(), weights);
    numbers(keys, &mut setting, keys.text("dtype")?.as_deref())?;
    setting.micro_batch = keys.count("batch_size")?.unwrap_or(1);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    let tokenizer = keys.part("tokenizer", "tokenizer.");
    let length = tokenizer
        .map(|tokenizer| tokenizer.count("max_seq_len"))
        .transpose()?
        .flatten();
    setting.sequence_length = length.unwrap_or(2048);
    setting.recompute = recompute(
        keys.flag("enable_activation_checkpointing")?.unwrap_or(false),
        keys.flag("enable_activation_offloading")?.unwrap_or(false),
    );
    setting.trains = Trains::Everything;
    if model.has("lora_rank") || component.contains("lora") {
        let mut targets = model.names("lora_attn_modules")?.unwrap_or_default();
        if model.flag("apply_lora_to_mlp")?.unwrap_or(false) {
            targets.push("mlp".into());
        }
        setting.trains = adapters(&model, ["lora_rank", "lora_dropout", "no_such_key"], 8, Some(targets))?;
    }
    let optimizer_part = keys.part("optimizer", "optimizer.");
    let class = optimizer_part
        .map(|part| part.text("_component_"))
        .transpose()?
        .flatten();
    setting.optimizer = class.map_or(setting.optimizer, |class| optimizer_of(&class, false));
    setting.compiled = keys.flag("compile")?.unwrap_or(false);
    setting.optimizer.in_backward = keys.flag("optimizer_in_bwd")?.unwrap_or(false);
    let folder = keys.part("checkpointer", "checkpointer.");
    let folder = folder.map(|part| part.text("checkpoint_dir")).transpose()?.flatten();
    let mut config = config(setting, folder, &model)?;
    if length.is_none() {
        config
            .notes
            .push("no `tokenizer.max_seq_len`: rows of 2048 tokens are assumed".into());
    }
    Ok(config)
}
