//! `adapter_config.json`: the adapter's settings as PEFT's `LoraConfig` (0.21) has them.
//!
//! Every key is one that `LoraConfig` knows: PEFT drops unknown ones with no more than a warning. `inference_mode` is
//! false, since a config with true gives an adapter whose parameters are frozen.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Tool;
use crate::export::draft::{Advice, Draft};
use crate::export::modules::{is_within, peft_targets};
use crate::export::{ExportInput, ExportRow, RenderError, Rendered};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{AdapterInit, AdapterSettings, Recipe, TargetModules, TargetPreset};

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "adapter_config.json, for PEFT's LoraConfig.from_pretrained",
    file_name: "adapter_config.json",
    other_trainers: &[],
    reading: None,
    sharding: None,
    asks_for_answer_marks: false,
    render,
};

/// JSON has no comments: what they would say stands in a file of its own.
const NOTE: &str = "adapter_config.notes.txt";

fn render(input: &ExportInput<'_>, _: &Path) -> Result<Rendered, RenderError> {
    let Some(adapter) = &input.recipe.adapter else {
        return Err(RenderError::NoAdapter { tool: Tool::Peft });
    };
    if adapter.lora_bias && (adapter.dora || adapter.init != AdapterInit::Kaiming) {
        return Err(RenderError::Refused {
            tool: Tool::Peft,
            field: "adapter.lora_bias",
            reason: "it takes neither DoRA nor another init beside a bias of lora_b; set `lora_bias: false`",
        });
    }
    let mut draft = Draft::new(Tool::Peft, input);
    draft.said(&["model"]);
    // Writing a tree of strings and finite numbers cannot fail.
    let text = serde_json::to_string_pretty(&config(&mut draft, adapter)).unwrap_or_default() + "\n";
    warn(&mut draft, input.recipe, adapter);
    let usage = "for LoraConfig.from_pretrained";
    Ok(draft.finish_with_note(usage, Advice::TRAIN_HERE, text, NOTE))
}

fn config(draft: &mut Draft<'_>, adapter: &AdapterSettings) -> Value {
    let architecture = draft.input.known.architecture;
    let targets = match &adapter.layers_to_transform {
        // PEFT takes its shorthand only for all layers.
        Some(_) => peft_targets(adapter, architecture),
        None => target_modules(adapter, architecture),
    };
    let layers = adapter
        .layers_to_transform
        .as_ref()
        .filter(|_| !is_within(architecture));
    let alphas: Map<String, Value> = adapter
        .alpha_pattern
        .iter()
        .map(|(name, alpha)| (name.clone(), whole_if_possible(*alpha)))
        .collect();
    let mut config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": draft.recipe().model,
        "inference_mode": false,
        "bias": adapter.bias,
        "fan_in_fan_out": false,
        "modules_to_save": (!adapter.modules_to_save.is_empty()).then_some(&adapter.modules_to_save),
        "layers_to_transform": layers,
        "rank_pattern": adapter.rank_pattern,
        "alpha_pattern": alphas,
    });
    if !adapter.target_parameters.is_empty() {
        config["target_parameters"] = json!(adapter.target_parameters);
    }
    let words = [
        draft.word("rank"),
        draft.word_as("alpha", whole_if_possible(adapter.alpha)),
        draft.word("dropout"),
        draft.word_as("target_modules", targets),
        draft.word("lora_bias"),
        draft.word("rslora"),
        draft.word("dora"),
    ];
    let words = words.into_iter().flatten().chain(draft.init_words(adapter.init));
    for (key, value) in words {
        config[key] = value;
    }
    draft.said(&[
        "adapter.bias",
        "adapter.target_parameters",
        "adapter.modules_to_save",
        "adapter.layers_to_transform",
        "adapter.rank_pattern",
        "adapter.alpha_pattern",
    ]);
    config
}

fn warn(draft: &mut Draft<'_>, recipe: &Recipe, adapter: &AdapterSettings) {
    draft.leaves(|field| !field.starts_with("adapter."));
    draft.warn(
        "optimizer",
        "this file describes the adapter only; take learning rate, batch, schedule and precision from --format recipe",
    );
    if recipe.precision.is_quantized() {
        draft.warn(
            "precision",
            "the base model was measured quantized; load it with BitsAndBytesConfig",
        );
    }
    if !recipe.weight_sparsity.is_none() {
        draft.warn(
            "weight_sparsity",
            "the base model was measured with two of each four values left out; an adapter that is trained on it is for these weights",
        );
    }
    if recipe.optimizer.loraplus_ratio.is_some() {
        draft.warn(
            "optimizer.loraplus_ratio",
            "build the optimizer with peft.optimizers.create_loraplus_optimizer",
        );
    }
    if adapter.adapter_init.is_some() {
        draft.warn(
            "adapter.adapter_init",
            "start from that adapter with PeftModel.from_pretrained(.., is_trainable=True)",
        );
    }
}

/// PEFT's value for target modules; `all-linear` is its own shorthand with the same meaning.
pub(crate) fn target_modules(adapter: &AdapterSettings, architecture: Option<&Architecture>) -> Value {
    match adapter.target_modules {
        TargetModules::Preset(TargetPreset::AllLinear) if !is_within(architecture) => json!("all-linear"),
        _ => peft_targets(adapter, architecture),
    }
}

/// A whole number without a point: PEFT declares alpha as an integer, though it computes with any number.
pub(crate) fn whole_if_possible(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}
