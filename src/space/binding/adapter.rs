//! Parameters of the adapter and of the base weights under it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Binding, Effect, Effects, FloatRange, Legal, SetError};
use peft_tune_core::recipe::{AdapterSettings, Recipe, TargetModules};
use peft_tune_core::study::ParamValue;

/// A factor on numbers that are computed anyway.
const SAME_WORK: &str = "the same operations on other numbers";

pub(super) const BINDINGS: &[Binding] = &[
    Binding {
        name: "method",
        field: "adapter",
        about: "Whether an adapter trains (lora), or every parameter of the model (full), to which the adapter's parameters mean nothing.",
        legal: Legal::Choice(&["lora", "full"]),
        elsewhere: &["finetuning_type", "tuner_type", "peft_method"],
        derived_from: None,
        effects: Effects::all(
            "gradients of all weights",
            "gradients and optimizer state of all weights",
            "what can be learned",
        ),
        get: |recipe| Some(if recipe.adapter.is_some() { "lora" } else { "full" }.into()),
        set: |recipe, value| {
            match value {
                ParamValue::Text(name) if name.as_str() == "full" => recipe.adapter = None,
                _ => drop(recipe.adapter.get_or_insert_default()),
            }
            Ok(())
        },
    },
    Binding {
        name: "precision",
        field: "precision",
        about: "How the frozen base weights are stored and multiplied.",
        legal: Legal::Choice(&["fp32", "bf16", "fp16", "int8", "nf4", "nf4_double"]),
        elsewhere: &[
            "dtype",
            "torch_dtype",
            "bf16",
            "fp16",
            "load_in_4bit",
            "load_in_8bit",
            "quantization",
            "quantization_bit",
        ],
        derived_from: None,
        effects: Effects::all(
            "other products, and dequantization",
            "bytes per base weight",
            "rounding and quantization of the base model",
        ),
        get: |recipe| name_of(&recipe.precision),
        set: |recipe, value| put(&mut recipe.precision, named(value)),
    },
    Binding {
        name: "rank",
        field: "adapter.rank",
        about: "Rank r of the adapters.",
        legal: Legal::Int { least: 1, most: 4096 },
        elsewhere: &["r", "lora_r", "lora_rank", "lora_dim"],
        derived_from: None,
        effects: Effects::all(
            "size of the adapter products",
            "adapters, their gradients and optimizer state",
            "capacity of the adapters",
        ),
        get: |recipe| Some(ParamValue::Int(adapter_of(recipe)?.rank as i64)),
        set: |recipe, value| put(&mut adapter(recipe)?.rank, count(value)),
    },
    Binding {
        name: "alpha",
        field: "adapter.alpha",
        about: "Numerator of the scaling alpha / r.",
        legal: Legal::Float(FloatRange::POSITIVE),
        elsewhere: &["lora_alpha"],
        derived_from: None,
        effects: Effects::loss_only(SAME_WORK, "scale of the adapters' output"),
        get: |recipe| Some(ParamValue::Float(adapter_of(recipe)?.alpha)),
        set: |recipe, value| put(&mut adapter(recipe)?.alpha, value.as_f64()),
    },
    Binding {
        name: "alpha_ratio",
        field: "adapter.alpha",
        about: "Sets alpha to this many times the rank.",
        legal: Legal::Float(FloatRange::POSITIVE),
        elsewhere: &["scaling", "lora_scaling", "alpha_over_rank"],
        derived_from: Some("rank"),
        effects: Effects::loss_only(SAME_WORK, "scale of the adapters' output"),
        get: |recipe| adapter_of(recipe).map(|adapter| ParamValue::Float(adapter.alpha / adapter.rank as f64)),
        set: |recipe, value| {
            let adapter = adapter(recipe)?;
            let ratio = value.as_f64().ok_or(SetError::Inapplicable)?;
            adapter.alpha = ratio * adapter.rank as f64;
            Ok(())
        },
    },
    Binding {
        name: "dropout",
        field: "adapter.dropout",
        about: "Probability that an element of an adapter's input is dropped.",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        elsewhere: &["lora_dropout"],
        derived_from: None,
        effects: Effects::all(
            "drawing and applying the mask; nothing at 0",
            "the mask kept for the backward pass; nothing at 0",
            "regularisation",
        ),
        get: |recipe| Some(ParamValue::Float(adapter_of(recipe)?.dropout)),
        set: |recipe, value| put(&mut adapter(recipe)?.dropout, value.as_f64()),
    },
    Binding {
        name: "target_modules",
        field: "adapter.target_modules",
        about: "Linear layers that get an adapter.",
        legal: Legal::Targets,
        elsewhere: &["lora_target_modules", "lora_target", "targets", "modules"],
        derived_from: None,
        effects: Effects::all(
            "number of adapter products",
            "adapters, and inputs kept for their gradients",
            "which layers can learn",
        ),
        get: |recipe| match &adapter_of(recipe)?.target_modules {
            TargetModules::Preset(preset) => name_of(preset),
            TargetModules::Named(names) => Some(ParamValue::list(names.iter().cloned())),
        },
        set: |recipe, value| {
            let targets = match value {
                ParamValue::List(names) => Some(TargetModules::Named(names.as_ref().clone())),
                preset => named(preset).map(TargetModules::Preset),
            };
            put(&mut adapter(recipe)?.target_modules, targets)
        },
    },
    Binding {
        name: "rslora",
        field: "adapter.rslora",
        about: "Scales by alpha / sqrt(r) instead of alpha / r (arXiv:2312.03732).",
        legal: Legal::Bool,
        elsewhere: &["use_rslora", "peft_use_rslora"],
        derived_from: None,
        effects: Effects::loss_only(SAME_WORK, "scale of the adapters' output"),
        get: |recipe| Some(adapter_of(recipe)?.rslora.into()),
        set: |recipe, value| put(&mut adapter(recipe)?.rslora, truth(value)),
    },
    Binding {
        name: "dora",
        field: "adapter.dora",
        about: "Trains magnitude and direction of the weights apart (arXiv:2402.09353).",
        legal: Legal::Bool,
        elsewhere: &["use_dora", "peft_use_dora"],
        derived_from: None,
        effects: Effects::all(
            "norms of the adapted weights",
            "magnitudes and workspace for the norms",
            "another parametrisation",
        ),
        get: |recipe| Some(adapter_of(recipe)?.dora.into()),
        set: |recipe, value| put(&mut adapter(recipe)?.dora, truth(value)),
    },
    Binding {
        name: "init",
        field: "adapter.init",
        about: "How the adapters start.",
        legal: Legal::Choice(&["kaiming", "gaussian", "pissa"]),
        elsewhere: &["init_lora_weights", "lora_init"],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Same("it acts before the first step"),
            peak_memory: Effect::Changes("`pissa` changes base weights, so it needs its own copy of them"),
            loss: Effect::Changes("where the training starts"),
        },
        get: |recipe| name_of(&adapter_of(recipe)?.init),
        set: |recipe, value| put(&mut adapter(recipe)?.init, named(value)),
    },
    Binding {
        name: "bias",
        field: "adapter.bias",
        about: "Which biases of the base model train too.",
        legal: Legal::Choice(&["none", "lora_only", "all"]),
        elsewhere: &["lora_bias_type"],
        derived_from: None,
        effects: Effects::all(
            "sums for bias gradients",
            "their gradients and optimizer state",
            "more that can learn",
        ),
        get: |recipe| name_of(&adapter_of(recipe)?.bias),
        set: |recipe, value| put(&mut adapter(recipe)?.bias, named(value)),
    },
    Binding {
        name: "lora_bias",
        field: "adapter.lora_bias",
        about: "Adds a trainable bias to lora_b.",
        legal: Legal::Bool,
        elsewhere: &["use_bias"],
        derived_from: None,
        effects: Effects::all(
            "sums for bias gradients",
            "their gradients and optimizer state",
            "more that can learn",
        ),
        get: |recipe| Some(adapter_of(recipe)?.lora_bias.into()),
        set: |recipe, value| put(&mut adapter(recipe)?.lora_bias, truth(value)),
    },
];

fn adapter_of(recipe: &Recipe) -> Option<&AdapterSettings> {
    recipe.adapter.as_ref()
}

fn adapter(recipe: &mut Recipe) -> Result<&mut AdapterSettings, SetError> {
    recipe.adapter.as_mut().ok_or(SetError::Inapplicable)
}

/// Puts a value that was understood into its field.
pub(super) fn put<T>(field: &mut T, value: Option<T>) -> Result<(), SetError> {
    *field = value.ok_or(SetError::Inapplicable)?;
    Ok(())
}

/// The name under which serde writes a unit variant.
pub(super) fn name_of<T: Serialize>(value: &T) -> Option<ParamValue> {
    let name = serde_json::to_value(value).ok()?;
    name.as_str().map(ParamValue::from)
}

/// The unit variant that serde reads from a name.
pub(super) fn named<T: DeserializeOwned>(value: &ParamValue) -> Option<T> {
    match value {
        ParamValue::Text(name) => serde_json::from_value(name.as_str().into()).ok(),
        _ => None,
    }
}

pub(super) fn truth(value: &ParamValue) -> Option<bool> {
    match value {
        ParamValue::Bool(value) => Some(*value),
        _ => None,
    }
}

pub(super) fn count(value: &ParamValue) -> Option<usize> {
    match value {
        ParamValue::Int(value) => usize::try_from(*value).ok(),
        _ => None,
    }
}
