//! Settings of the adapter and of the base weights under it.

use super::effect::{Circumstance, Effects, Form, changes, form, same};
use super::field::{count, name_of, named, put, truth};
use super::{FloatRange, Legal, SetError, SettingRow};
use crate::recipe::{
    ActivationQuantization, AdapterInit, AdapterSettings, ParamValue, Precision, QuantizationAware, Recipe,
    TargetModules, WeightSparsity,
};

/// A factor on numbers that are computed anyway.
const SAME_WORK: &str = "the same operations on other numbers";

/// The mask costs the same at any probability.
const ABOVE_ZERO: Form = Form {
    words: "whether it is above 0",
    of: |value| (value.as_f64() > Some(0.0)).into(),
};

/// Form of a start: only PiSSA touches the base weights.
const PISSA: Form = Form {
    words: "whether it is pissa",
    of: |value| (*value == "pissa".into()).into(),
};

/// Form of the rule that leaves values out: what decides which ones stay costs no step anything.
const SPARSE: Form = Form {
    words: "whether it is none",
    of: |value| (*value == "none".into()).into(),
};

/// Weights of other precisions are multiplied as they are.
const QUANTIZED: Circumstance = Circumstance(|recipe| recipe.precision.is_quantized());
/// Weights that are quantized already are not rounded again.
const DENSE: Circumstance = Circumstance(|recipe| !recipe.precision.is_quantized());
/// The widest steps decide, however many there are.
const SCHEDULED: Form = Form {
    words: "its kind: adaptive ones keep a step's gradients",
    of: |value| match value {
        ParamValue::Text(name) => name.split('_').next().unwrap_or_default().into(),
        other => other.clone(),
    },
};

/// Recipes in 16 bits: the others compute in F32 anyway, or store codes.
const IN_16_BITS: Circumstance = Circumstance(|recipe| matches!(recipe.precision, Precision::Bf16 | Precision::Fp16));

pub(super) const ROWS: &[SettingRow] = &[
    SettingRow {
        name: "method",
        field: "adapter",
        about: "Whether an adapter trains (lora), or every parameter of the model (full), to which the adapter's parameters mean nothing.",
        legal: Legal::Choice(&["lora", "full"]),
        widest: None,
        elsewhere: &["tuner_type", "peft_method"],
        unit: None,
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
    SettingRow {
        name: "precision",
        field: "precision",
        about: "How the frozen base weights are stored and multiplied.",
        legal: Legal::Choice(&Precision::NAMES),
        widest: None,
        elsewhere: &[
            "torch_dtype",
            "bf16",
            "fp16",
            "load_in_4bit",
            "load_in_8bit",
            "quantization",
            "quantization_bit",
        ],
        unit: None,
        derived_from: None,
        effects: Effects::all(
            "other products, and dequantization",
            "bytes per base weight",
            "rounding and quantization of the base model",
        ),
        get: |recipe| name_of(&recipe.precision),
        set: |recipe, value| put(&mut recipe.precision, named(value)),
    },
    SettingRow {
        name: "activation_quantization",
        field: "activation_quantization",
        about: "Which products of quantized base weights take their activations in 8 bits, with a scale for each token.",
        legal: Legal::Choice(&ActivationQuantization::NAMES),
        widest: None,
        elsewhere: &["activations", "activation_dtype", "w8a8", "w4a8"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("products of bytes").only(QUANTIZED),
            peak_memory: changes("a copy of activations in bytes").only(QUANTIZED),
            loss: changes("rounding of activations and gradients").only(QUANTIZED),
        },
        get: |recipe| name_of(&recipe.activation_quantization),
        set: |recipe, value| put(&mut recipe.activation_quantization, named(value)),
    },
    SettingRow {
        name: "weight_sparsity",
        field: "weight_sparsity",
        about: "Which two of each four values of the frozen linear weights stay (2:4), by size or by size times activations.",
        legal: Legal::Choice(&WeightSparsity::NAMES),
        widest: None,
        elsewhere: &["sparsity", "pruning", "wanda"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: form(SPARSE, "weights are expanded in each product"),
            peak_memory: form(SPARSE, "half of the values, and a bit of position for each weight"),
            loss: changes("which values of the weights are zero"),
        },
        get: |recipe| name_of(&recipe.weight_sparsity),
        set: |recipe, value| put(&mut recipe.weight_sparsity, named(value)),
    },
    SettingRow {
        name: "quantization_aware",
        field: "quantization_aware",
        about: "Which form the merged weights are rounded to in each pass, so that the model can be merged and quantized so (`merge --quantize`).",
        legal: Legal::Choice(&QuantizationAware::NAMES),
        widest: None,
        elsewhere: &["qat", "quantizer", "qat_scheme"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("the merged weights are made in each pass").only(DENSE),
            peak_memory: changes("the codes of all linear layers").only(DENSE),
            loss: changes("rounding of the merged weights").only(DENSE),
        },
        get: |recipe| name_of(&recipe.quantization_aware),
        set: |recipe, value| put(&mut recipe.quantization_aware, named(value)),
    },
    SettingRow {
        name: "precision_schedule",
        field: "precision_schedule",
        about: "Which steps compute in fp32 instead: none, the first N, or as gradients say.",
        legal: Legal::PrecisionSchedule,
        widest: None,
        elsewhere: &["dynamic_precision", "mixed_precision_schedule"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("steps that compute in fp32").only(IN_16_BITS),
            peak_memory: form(SCHEDULED, "activations in fp32").only(IN_16_BITS),
            loss: changes("rounding of activations").only(IN_16_BITS),
        },
        get: |recipe| name_of(&recipe.precision_schedule),
        set: |recipe, value| put(&mut recipe.precision_schedule, named(value)),
    },
    SettingRow {
        name: "rank",
        field: "adapter.rank",
        about: "Rank r of the adapters.",
        legal: Legal::Int { least: 1, most: 4096 },
        widest: None,
        elsewhere: &["lora_dim"],
        unit: None,
        derived_from: None,
        effects: Effects::all(
            "size of the adapter products",
            "adapters, their gradients and optimizer state",
            "capacity of the adapters",
        ),
        get: |recipe| Some(ParamValue::Int(adapter_of(recipe)?.rank as i64)),
        set: |recipe, value| put(&mut adapter(recipe)?.rank, count(value)),
    },
    SettingRow {
        name: "alpha",
        field: "adapter.alpha",
        about: "Numerator of the scaling alpha / r.",
        legal: Legal::Float(FloatRange::POSITIVE),
        widest: Some(FloatRange::between(0.01, 4096.0)),
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only(SAME_WORK, "scale of the adapters' output"),
        get: |recipe| Some(ParamValue::Float(adapter_of(recipe)?.alpha)),
        set: |recipe, value| put(&mut adapter(recipe)?.alpha, value.as_f64()),
    },
    SettingRow {
        name: "alpha_ratio",
        field: "adapter.alpha",
        about: "Sets alpha to this many times the rank.",
        legal: Legal::Float(FloatRange::POSITIVE),
        widest: Some(FloatRange::between(0.01, 64.0)),
        elsewhere: &["scaling", "lora_scaling", "alpha_over_rank"],
        unit: None,
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
    SettingRow {
        name: "dropout",
        field: "adapter.dropout",
        about: "Probability that an element of an adapter's input is dropped.",
        legal: Legal::Float(FloatRange::BELOW_ONE),
        widest: None,
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: form(ABOVE_ZERO, "drawing and applying the mask"),
            peak_memory: form(ABOVE_ZERO, "the mask kept for the backward pass"),
            loss: changes("regularisation"),
        },
        get: |recipe| Some(ParamValue::Float(adapter_of(recipe)?.dropout)),
        set: |recipe, value| put(&mut adapter(recipe)?.dropout, value.as_f64()),
    },
    SettingRow {
        name: "target_modules",
        field: "adapter.target_modules",
        about: "Linear layers that get an adapter.",
        legal: Legal::Targets,
        widest: None,
        elsewhere: &["targets", "modules"],
        unit: None,
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
    SettingRow {
        name: "rslora",
        field: "adapter.rslora",
        about: "Scales by alpha / sqrt(r) instead of alpha / r (arXiv:2312.03732).",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects::loss_only(SAME_WORK, "scale of the adapters' output"),
        get: |recipe| Some(adapter_of(recipe)?.rslora.into()),
        set: |recipe, value| put(&mut adapter(recipe)?.rslora, truth(value)),
    },
    SettingRow {
        name: "dora",
        field: "adapter.dora",
        about: "Trains magnitude and direction of the weights apart (arXiv:2402.09353).",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &[],
        unit: None,
        derived_from: None,
        effects: Effects::all(
            "norms of the adapted weights",
            "magnitudes and workspace for the norms",
            "another parametrisation",
        ),
        get: |recipe| Some(adapter_of(recipe)?.dora.into()),
        set: |recipe, value| put(&mut adapter(recipe)?.dora, truth(value)),
    },
    SettingRow {
        name: "init",
        field: "adapter.init",
        about: "How the adapters start.",
        legal: Legal::Choice(&AdapterInit::NAMES),
        widest: None,
        elsewhere: &["lora_init"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: same("it acts before the first step"),
            peak_memory: form(PISSA, "it changes base weights, so it needs its own copy of them"),
            loss: changes("where the training starts"),
        },
        get: |recipe| name_of(&adapter_of(recipe)?.init),
        set: |recipe, value| put(&mut adapter(recipe)?.init, named(value)),
    },
    SettingRow {
        name: "bias",
        field: "adapter.bias",
        about: "Which biases of the base model train too.",
        legal: Legal::Choice(&["none", "lora_only", "all"]),
        widest: None,
        elsewhere: &["lora_bias_type"],
        unit: None,
        derived_from: None,
        effects: Effects::all(
            "sums for bias gradients",
            "their gradients and optimizer state",
            "more that can learn",
        ),
        get: |recipe| name_of(&adapter_of(recipe)?.bias),
        set: |recipe, value| put(&mut adapter(recipe)?.bias, named(value)),
    },
    SettingRow {
        name: "lora_bias",
        field: "adapter.lora_bias",
        about: "Adds a trainable bias to lora_b.",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &["use_bias"],
        unit: None,
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
