//! `adapter_config.json`: the adapter's settings as PEFT's `LoraConfig` (0.21) has them.
//!
//! Every key is one that `LoraConfig` knows: PEFT drops unknown ones with no more than a warning. `inference_mode` is
//! false, since a config with true gives an adapter whose parameters are frozen.

use serde_json::{Map, Value, json};

use super::modules::module_names;
use super::write::Rendered;
use super::{ExportError, ExportFormat, ExportInput, Warning};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{AdapterBias, AdapterInit, AdapterSettings, Recipe, TargetModules, TargetPreset};

pub(super) fn render(input: &ExportInput<'_>) -> Result<Rendered, ExportError> {
    let Some(adapter) = &input.recipe.adapter else {
        return Err(ExportError::NoAdapter {
            format: ExportFormat::Peft,
        });
    };
    if adapter.lora_bias && (adapter.dora || adapter.init != AdapterInit::Kaiming) {
        return Err(ExportError::Refused {
            format: ExportFormat::Peft,
            field: "adapter.lora_bias",
            reason: "it takes neither DoRA nor another init beside a bias of lora_b; set `lora_bias: false`",
        });
    }
    let config = config(input, adapter);
    // Writing a tree of strings and finite numbers cannot fail.
    let text = serde_json::to_string_pretty(&config).unwrap_or_default() + "\n";
    Ok(Rendered::new(ExportFormat::Peft, text, warnings(input.recipe, adapter)))
}

fn config(input: &ExportInput<'_>, adapter: &AdapterSettings) -> Value {
    let recipe = input.recipe;
    let architecture = input.known.architecture;
    let alphas: Map<String, Value> = adapter
        .alpha_pattern
        .iter()
        .map(|(name, alpha)| (name.clone(), whole_if_possible(*alpha)))
        .collect();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": recipe.model,
        "inference_mode": false,
        "r": adapter.rank,
        "lora_alpha": whole_if_possible(adapter.alpha),
        "lora_dropout": adapter.dropout,
        "target_modules": match &adapter.layers_to_transform {
            // PEFT takes its shorthand only for all layers.
            Some(_) => json!(module_names(&adapter.target_modules, architecture)),
            None => target_modules(&adapter.target_modules, architecture),
        },
        "bias": bias(adapter.bias),
        "lora_bias": adapter.lora_bias,
        "use_rslora": adapter.rslora,
        "use_dora": adapter.dora,
        "init_lora_weights": match adapter.init {
            AdapterInit::Kaiming => json!(true),
            AdapterInit::Gaussian => json!("gaussian"),
            AdapterInit::Pissa => json!("pissa"),
        },
        "fan_in_fan_out": false,
        "modules_to_save": (!adapter.modules_to_save.is_empty()).then_some(&adapter.modules_to_save),
        "layers_to_transform": adapter.layers_to_transform,
        "rank_pattern": adapter.rank_pattern,
        "alpha_pattern": alphas,
    })
}

fn warnings(recipe: &Recipe, adapter: &AdapterSettings) -> Vec<Warning> {
    let mut warnings = vec![Warning::new(
        "optimizer",
        "this file describes the adapter only; take learning rate, batch, schedule and precision from --format recipe",
    )];
    if recipe.precision.is_quantized() {
        warnings.push(Warning::new(
            "precision",
            "the base model was measured quantized; load it with BitsAndBytesConfig",
        ));
    }
    if recipe.optimizer.loraplus_ratio.is_some() {
        warnings.push(Warning::new(
            "optimizer.loraplus_ratio",
            "build the optimizer with peft.optimizers.create_loraplus_optimizer",
        ));
    }
    if adapter.adapter_init.is_some() {
        warnings.push(Warning::new(
            "adapter.adapter_init",
            "start from that adapter with PeftModel.from_pretrained(.., is_trainable=True)",
        ));
    }
    warnings
}

/// PEFT's value for target modules; `all-linear` is its own shorthand with the same meaning.
pub(super) fn target_modules(targets: &TargetModules, architecture: Option<&Architecture>) -> Value {
    match targets {
        TargetModules::Preset(TargetPreset::AllLinear) => json!("all-linear"),
        targets => json!(module_names(targets, architecture)),
    }
}

/// A whole number without a point: PEFT declares alpha as an integer, though it computes with any number.
pub(super) fn whole_if_possible(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

fn bias(bias: AdapterBias) -> &'static str {
    match bias {
        AdapterBias::None => "none",
        AdapterBias::LoraOnly => "lora_only",
        AdapterBias::All => "all",
    }
}
