//! `adapter_config.json` as PEFT 0.21 writes and reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use peft_tune_core::architecture::name_within;
use peft_tune_core::recipe::{AdapterBias, AdapterInit, AdapterSettings, TargetModules, TargetPreset};

use super::error::AdapterError;
use peft_tune_core::plan::{AdaptedLinear, ends_in, expression_within, from_file, last_component};

/// Keys of a PEFT configuration that change what the adapter computes and that this engine does not have. They must be
/// absent, null, false or empty.
const UNSUPPORTED: &[&str] = &[
    "alora_invocation_tokens",
    "arrow_config",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "megatron_config",
    "monteclora_config",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
];

/// The content of an `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct PeftConfig {
    /// Location of the base model, if the file says so.
    pub base_model: Option<String>,
    /// Whether embedding and LM head are one parameter, where the base model has them tied (`ensure_weight_tying`). Without it PEFT
    /// trains and loads each end for itself.
    pub ties_embeddings: bool,
    pub settings: AdapterSettings,
}

impl PeftConfig {
    /// The file's text: keys sorted, two spaces of indentation, one value for every field of PEFT 0.21's `LoraConfig`.
    ///
    /// `linears` are what has an adapter: PEFT wants endings, so a preset is written as those. Experts are written as the parameters
    /// that they are to PEFT, whichever names selected them. For a language model `within` a multimodal one it is a regular
    /// expression, since the vision tower's modules end alike.
    pub fn to_json(&self, linears: &[AdaptedLinear], within: Option<&str>) -> String {
        let settings = &self.settings;
        let layers = settings.layers_to_transform.as_ref().filter(|_| within.is_none());
        let name = |key: &String| name_within(within, key);
        let written = WrittenTargets::new(settings, linears);
        let config = json!({
            "alora_invocation_tokens": null,
            "alpha_pattern": written.alphas.iter()
                .map(|(key, alpha)| (name(key), number(*alpha))).collect::<Map<_, _>>(),
            "arrow_config": null,
            "auto_mapping": null,
            "base_model_name_or_path": self.base_model,
            "bias": match settings.bias {
                AdapterBias::None => "none",
                AdapterBias::LoraOnly => "lora_only",
                AdapterBias::All => "all",
            },
            "corda_config": null,
            "ensure_weight_tying": self.ties_embeddings,
            "eva_config": null,
            "exclude_modules": null,
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": match settings.init {
                AdapterInit::Kaiming => json!(true),
                AdapterInit::Gaussian => json!("gaussian"),
                AdapterInit::Pissa => json!("pissa"),
            },
            "kasa_config": null,
            "layer_replication": null,
            "layers_pattern": null,
            "layers_to_transform": layers,
            "loftq_config": {},
            "lora_alpha": number(settings.alpha),
            "lora_bias": settings.lora_bias,
            "lora_dropout": settings.dropout,
            "lora_ga_config": null,
            "megatron_config": null,
            "megatron_core": "megatron.core",
            "modules_to_save": (!settings.modules_to_save.is_empty()).then_some(&settings.modules_to_save),
            "monteclora_config": null,
            "peft_type": "LORA",
            "peft_version": "0.21.2",
            "qalora_group_size": 16,
            "r": settings.rank,
            "rank_pattern": written.ranks.iter()
                .map(|(key, rank)| (name(key), json!(rank))).collect::<Map<_, _>>(),
            "revision": null,
            "target_modules": match within {
                Some(_) => json!(expression_within(&written.modules, settings.layers_to_transform.as_deref())),
                None => json!(written.modules),
            },
            "target_parameters": (!written.parameters.is_empty()).then_some(&written.parameters),
            "task_type": "CAUSAL_LM",
            "trainable_token_indices": null,
            "use_bdlora": null,
            "use_dora": settings.dora,
            "use_qalora": false,
            "use_rslora": settings.rslora,
            "velora_config": null,
        });
        format!("{config:#}")
    }

    /// Reads the text of the file at `path`. Keys that other versions of PEFT have are skipped unless they change what
    /// the adapter computes.
    ///
    /// `modules` are the names of the modules that have LoRA tensors: they are the targets where the file has a regular
    /// expression or exclusions.
    ///
    /// # Errors
    /// Text that is not JSON, values of a wrong type, and features that this engine does not have.
    pub fn from_json(text: &str, path: &Path, modules: &[String]) -> Result<Self, AdapterError> {
        let config: Map<String, Value> = serde_json::from_str(text).map_err(|source| AdapterError::Config {
            path: path.to_owned(),
            source,
        })?;
        let fields = Fields { config: &config, path };
        fields.check_supported()?;
        let target_parameters = fields.or("target_parameters", "a list of names", Vec::new(), as_names)?;
        let modules = &parameter_names(modules, &target_parameters);
        let settings = AdapterSettings {
            rank: fields.required("r", "a whole number of 1 or more", as_usize)?,
            alpha: fields.or("lora_alpha", "a number", 8.0, Value::as_f64)?,
            dropout: fields.or("lora_dropout", "a number in [0, 1)", 0.0, as_probability)?,
            target_modules: fields.targets(modules, &target_parameters)?,
            target_parameters,
            rslora: fields.or("use_rslora", "true or false", false, Value::as_bool)?,
            dora: fields.or("use_dora", "true or false", false, Value::as_bool)?,
            init: fields.init()?,
            bias: fields.or("bias", "`none`, `lora_only` or `all`", AdapterBias::None, as_bias)?,
            lora_bias: fields.or("lora_bias", "true or false", false, Value::as_bool)?,
            rank_pattern: fields.patterns("rank_pattern", "names with whole numbers", modules, as_usize)?,
            alpha_pattern: fields.patterns("alpha_pattern", "names with numbers", modules, Value::as_f64)?,
            layers_to_transform: fields.or("layers_to_transform", "a layer or a list of layers", None, as_layers)?,
            modules_to_save: fields.or("modules_to_save", "a list of names", Vec::new(), as_names)?,
            adapter_init: None,
        };
        let base_model = config
            .get("base_model_name_or_path")
            .and_then(Value::as_str)
            .map(str::to_owned);
        Ok(Self {
            base_model,
            ties_embeddings: fields.or("ensure_weight_tying", "true or false", false, Value::as_bool)?,
            settings,
        })
    }
}

/// The keys of a configuration, read with errors that name file and key.
struct Fields<'a> {
    config: &'a Map<String, Value>,
    path: &'a Path,
}

impl Fields<'_> {
    fn required<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, AdapterError> {
        let value = self.config.get(key).unwrap_or(&Value::Null);
        convert(value).ok_or_else(|| self.unsupported(key, value, expected))
    }

    /// The value of `key`, or `default` where it is absent or null.
    fn or<T>(
        &self,
        key: &str,
        expected: &'static str,
        default: T,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, AdapterError> {
        match self.config.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.required(key, expected, convert),
        }
    }

    fn patterns<V: Copy + PartialEq>(
        &self,
        key: &'static str,
        expected: &'static str,
        modules: &[String],
        convert: impl Fn(&Value) -> Option<V>,
    ) -> Result<BTreeMap<String, V>, AdapterError> {
        let entries: Vec<(String, V)> = self.or(key, expected, Vec::new(), |value| {
            let pairs = value.as_object()?.iter();
            pairs
                .map(|(name, value)| Some((name.clone(), convert(value)?)))
                .collect()
        })?;
        Ok(from_file(key, &entries, modules)?)
    }

    fn check_supported(&self) -> Result<(), AdapterError> {
        let peft_type = self.config.get("peft_type").unwrap_or(&Value::Null);
        if peft_type != "LORA" {
            return Err(self.unsupported("peft_type", peft_type, "`LORA`"));
        }
        for key in UNSUPPORTED {
            let value = self.config.get(*key).unwrap_or(&Value::Null);
            let is_empty = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(items) => items.is_empty(),
                _ => false,
            };
            if !is_empty {
                return Err(self.unsupported(key, value, "null"));
            }
        }
        Ok(())
    }

    fn targets(&self, modules: &[String], parameters: &[String]) -> Result<TargetModules, AdapterError> {
        let expected = "a list of names, a regular expression or `all-linear`";
        let excludes = self.config.get("exclude_modules").is_some_and(|value| !value.is_null());
        let is_parameter = |module: &&String| {
            let weight = format!("{module}.weight");
            parameters
                .iter()
                .any(|parameter| ends_in(module, parameter) || ends_in(&weight, parameter))
        };
        let from_tensors =
            || TargetModules::Named(modules.iter().filter(|module| !is_parameter(module)).cloned().collect());
        // PEFT writes null where parameters alone have adapters.
        let without_modules = TargetModules::Named(Vec::new());
        if !parameters.is_empty() && self.config.get("target_modules").is_none_or(Value::is_null) {
            return Ok(without_modules);
        }
        self.required("target_modules", expected, |value| match value {
            Value::String(_) | Value::Array(_) if excludes => Some(from_tensors()),
            Value::String(text) if text == "all-linear" => Some(TargetModules::default()),
            Value::String(_) => Some(from_tensors()),
            Value::Array(_) => as_names(value).map(TargetModules::Named),
            _ => None,
        })
    }

    fn init(&self) -> Result<AdapterInit, AdapterError> {
        let expected = "true, false, `gaussian` or `pissa` (an init that changes the base weights must be repeatable)";
        self.or(
            "init_lora_weights",
            expected,
            AdapterInit::Kaiming,
            |value| match value {
                // Orthogonal and false differ from Kaiming only before the tensors are read.
                Value::Bool(_) => Some(AdapterInit::Kaiming),
                Value::String(text) => match text.as_str() {
                    "gaussian" => Some(AdapterInit::Gaussian),
                    "pissa" => Some(AdapterInit::Pissa),
                    "orthogonal" | "eva" => Some(AdapterInit::Kaiming),
                    _ => None,
                },
                _ => None,
            },
        )
    }

    fn unsupported(&self, key: &str, value: &Value, expected: &'static str) -> AdapterError {
        let mut value = value.to_string();
        if value.len() > 80 {
            let cut = (0..=80).rev().find(|&index| value.is_char_boundary(index)).unwrap_or(0);
            value.truncate(cut);
            value.push_str("...");
        }
        AdapterError::Unsupported {
            path: self.path.to_owned(),
            key: key.to_owned(),
            value,
            expected,
        }
    }
}

/// PEFT types alpha as an integer: whole numbers are written without a fraction.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

/// Modules and parameters that are adapted, as PEFT's file has them.
struct WrittenTargets {
    modules: Vec<String>,
    parameters: Vec<String>,
    ranks: BTreeMap<String, usize>,
    alphas: BTreeMap<String, f64>,
}

impl WrittenTargets {
    fn new(settings: &AdapterSettings, linears: &[AdaptedLinear]) -> Self {
        let names = |by_parameter: bool| {
            let chosen = linears.iter().filter(move |linear| linear.by_parameter == by_parameter);
            chosen.map(|linear| linear.linear.name.as_str())
        };
        let has_parameters = names(true).next().is_some();
        let selects = |target: &&String| !has_parameters || names(false).any(|module| ends_in(module, target));
        let modules: BTreeSet<String> = match &settings.target_modules {
            TargetModules::Named(targets) => targets.iter().filter(selects).cloned().collect(),
            TargetModules::Preset(TargetPreset::AllLinear | TargetPreset::Attention | TargetPreset::Mlp) => {
                names(false).map(|module| last_component(module).to_owned()).collect()
            }
        };
        let mut written = Self {
            modules: modules.into_iter().collect(),
            parameters: settings.target_parameters.clone(),
            ranks: settings.rank_pattern.clone(),
            alphas: settings.alpha_pattern.clone(),
        };
        linears
            .iter()
            .filter(|linear| linear.by_parameter)
            .for_each(|linear| written.add(linear));
        written
    }

    /// Adds a parameter that names of modules stood for.
    fn add(&mut self, linear: &AdaptedLinear) {
        let parameter = linear.linear.parameter_name();
        // The same in every layer: what lies behind `model.layers.3.`.
        let inner = parameter.splitn(4, '.').nth(3).unwrap_or(&parameter).to_owned();
        if !self.parameters.iter().any(|known| ends_in(&parameter, known)) {
            self.parameters.push(inner.clone());
        }
        if linear.joined > 1 {
            self.ranks.entry(inner.clone()).or_insert(linear.rank);
            self.alphas.entry(inner).or_insert(linear.alpha);
        }
    }
}

/// The names of what has tensors, with those of the parameters that PEFT's wrappers stand for: the inner one of two is what was
/// wrapped first.
fn parameter_names(modules: &[String], parameters: &[String]) -> Vec<String> {
    const INNER: &str = ".base_layer";
    let has_gate_up = parameters
        .iter()
        .any(|parameter| last_component(parameter) == "gate_up_proj");
    let name = |module: &String| match module.strip_suffix(INNER) {
        Some(experts) => format!("{experts}.gate_up_proj"),
        None if !module.ends_with(".experts") => module.clone(),
        None if modules.contains(&format!("{module}{INNER}")) || !has_gate_up => format!("{module}.down_proj"),
        None => format!("{module}.gate_up_proj"),
    };
    modules.iter().map(name).collect()
}

fn as_usize(value: &Value) -> Option<usize> {
    value
        .as_u64()
        .and_then(|value| usize::try_from(value).ok())
        .filter(|value| *value > 0)
}

fn as_probability(value: &Value) -> Option<f64> {
    value.as_f64().filter(|value| (0.0..1.0).contains(value))
}

fn as_bias(value: &Value) -> Option<AdapterBias> {
    match value.as_str()? {
        "none" => Some(AdapterBias::None),
        "lora_only" => Some(AdapterBias::LoraOnly),
        "all" => Some(AdapterBias::All),
        _ => None,
    }
}

fn as_layers(value: &Value) -> Option<Option<Vec<usize>>> {
    let index = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
    match value {
        Value::Array(items) => Some(Some(items.iter().map(index).collect::<Option<Vec<_>>>()?)),
        _ => Some(Some(vec![index(value)?])),
    }
}

fn as_names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter();
    names.map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests;
