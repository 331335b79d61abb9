//! Keys of a training: the arguments of the calls that say it, under the names that settings files have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::calls::{
    CONFIG, LOADER, ModelKind, QUANTIZATION, UNSLOTH_ADAPTER, UNSLOTH_LOADER, config_kind, model_kind, trainer_row,
};
use super::run::{Bound, Called, Run};
use super::training::Training;
use super::value::{Evaluated, Known};
use crate::Tool;
use crate::import::passed_over::OF_NO_BYTES;
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{Checkpointing, Precision};

/// Arguments that are objects, or that say nothing of a training.
const PASSED_OVER: &[&str] = &[
    // Of trainers.
    "model",
    "ref_model",
    "args",
    "data_collator",
    "train_dataset",
    "eval_dataset",
    "tokenizer",
    "processing_class",
    "peft_config",
    "formatting_func",
    "callbacks",
    "compute_metrics",
    "compute_loss_func",
    "preprocess_logits_for_metrics",
    "optimizers",
    "model_init",
    "model_init_kwargs",
    "quantization_config",
    // Of loaders.
    "token",
    "use_auth_token",
    "device_map",
    "low_cpu_mem_usage",
    "use_safetensors",
    "local_files_only",
    "force_download",
    "use_cache",
    "config",
    "fix_tokenizer",
    "gpu_memory_utilization",
    "max_lora_rank",
    "disable_log_stats",
    "use_exact_model_name",
    "temporary_location",
    "use_fast",
    "is_trainable",
    "adapter_name",
];

/// Arguments of trainers' settings that readers take by names of their own, and no table of TRL's keys has.
const BESIDE_TABLES: &[&str] = &[
    "max_seq_length",
    "loss_type",
    "rpo_alpha",
    "optim_args",
    "adafactor",
    "group_by_length",
    "per_gpu_train_batch_size",
    "torch_compile_backend",
    "torch_compile_mode",
    "tf32",
    "use_liger",
    "dataset_num_proc",
    "chat_template_path",
    "deepspeed",
    "fsdp",
    "fsdp_config",
    "torch_dtype",
];

/// Arguments of loaders. The fields of a script's class that are called so stand behind what the loader is given.
const OF_LOADERS: &[&str] = &["dtype", "torch_dtype", "attn_implementation"];

/// Arguments of unsloth's function for adapters that it does not look at.
const UNREAD_OF_ADAPTER: &[&str] = &["max_seq_length"];

/// Arguments that turn something off by `None`, which is on where they are not given: TRL cuts no rows then.
const OFF_BY_NONE: &[&str] = &["max_length"];

/// Settings of quantization in the arguments of models and trainers.
const QUANTIZATION_SETTINGS: &str = "quantization_config";

/// Note on the argument of a script, or on the script as a whole.
#[derive(Clone, Debug)]
pub(crate) struct ScriptNote {
    /// Name of the argument; empty where it is of none.
    pub key: String,
    pub text: String,
}

/// Keys with their values, and where they stand.
#[derive(Default)]
pub(super) struct ScriptKeys {
    pub values: Map<String, Value>,
    /// Arguments of the call that loads the model alone.
    pub of_model: Map<String, Value>,
    pub locations: BTreeMap<String, String>,
    pub notes: Vec<ScriptNote>,
}

/// Arguments of a call, those by position with the names that they have.
struct NamedArguments<'r> {
    call: &'r Called,
    positions: &'static [&'static str],
    passed_over: &'static [&'static str],
}

impl ScriptKeys {
    /// The keys of a training. Of a name that two calls have, the trainer's settings come first, and the model's last.
    pub(super) fn of(run: &Run<'_>, training: &Training<'_>) -> Self {
        let mut all = Self::default();
        let loader = match training.model.and_then(model_kind) {
            Some(ModelKind::Unsloth) => UNSLOTH_LOADER,
            _ => LOADER,
        };
        let positions = training
            .trainer
            .and_then(trainer_row)
            .map_or(&[][..], |row| row.positions);
        let of_unsloth = training.adapter.filter(|call| call.short_name() == "get_peft_model");
        let adapter = match of_unsloth {
            Some(call) => NamedArguments::of(Some(call), UNSLOTH_ADAPTER).map(|given| NamedArguments {
                passed_over: UNREAD_OF_ADAPTER,
                ..given
            }),
            None => NamedArguments::of(training.adapter, &[]),
        };
        let calls = [
            NamedArguments::of(training.config, CONFIG),
            NamedArguments::of(training.trainer, positions),
            adapter,
        ];
        for given in calls.into_iter().flatten() {
            all.add_arguments(run, &given);
        }
        let given = [
            training.argument(QUANTIZATION_SETTINGS),
            training.model_argument(QUANTIZATION_SETTINGS),
        ];
        for given in given.into_iter().flatten() {
            all.quantization(run, given);
        }
        all.for_loading(run, training);
        if let Some(own) = NamedArguments::of(training.model, loader) {
            for (name, bound) in own.by_name() {
                all.of_model
                    .extend(bound.value.plain().map(|value| (name.to_owned(), value)));
            }
            all.add_arguments(run, &own);
        }
        if let Some(bound) = training.model_name {
            all.add(run, "model_name_or_path", bound);
        }
        if let Some(config) = training.config {
            all.add_defaults_of_loaders(run, config);
        }
        all
    }

    /// Takes the arguments of a call. Fields that a script's class adds to a trainer's settings are none of the trainer's, unless the
    /// call writes them.
    fn add_arguments(&mut self, run: &Run<'_>, given: &NamedArguments<'_>) {
        let defaults = match config_kind(given.call) {
            Some(_) => given.call.defaults(),
            None => BTreeSet::new(),
        };
        for (name, bound) in given.by_name() {
            let is_left = defaults.contains(name) && (!is_of_trainers(name) || OF_LOADERS.contains(&name));
            if !is_left && !PASSED_OVER.contains(&name) && !given.passed_over.contains(&name) {
                self.add(run, renamed(name), bound);
            }
        }
        let function = given.call.short_name();
        for bound in &given.call.arguments.unknown {
            let location = run.location(bound.line);
            self.note(
                "",
                format!(
                    "{location}: what `{}` gives `{function}` cannot be evaluated, and is left out",
                    bound.text
                ),
            );
        }
    }

    /// Takes how a class of the script says that the model is loaded, where nothing else says it.
    fn add_defaults_of_loaders(&mut self, run: &Run<'_>, config: &Called) {
        let defaults = config.defaults();
        for name in OF_LOADERS.iter().filter(|name| defaults.contains(*name)) {
            let is_told = self.notes.iter().any(|note| note.key == *name);
            if let Some(bound) = config.argument(name, None).filter(|_| !is_told) {
                self.add(run, name, bound);
            }
        }
    }

    /// Takes an argument, where no other call has it.
    fn add(&mut self, run: &Run<'_>, name: &str, bound: &Bound) {
        if self.values.contains_key(name) {
            return;
        }
        let location = run.location(bound.line);
        for ground in bound.value.all_grounds() {
            self.note(name, ground.to_string());
        }
        match bound.value.plain() {
            Some(Value::Null) if !OFF_BY_NONE.contains(&name) => {}
            Some(value) => {
                self.values.insert(name.to_owned(), value);
                self.locations.insert(name.to_owned(), location);
            }
            None => {
                let text = match bound.text.is_empty() {
                    true => name.to_owned(),
                    false => format!("{name}={}", bound.text),
                };
                self.note(
                    name,
                    format!("{location}: `{text}` cannot be evaluated: the usual value is taken; write it out"),
                );
            }
        }
    }

    fn note(&mut self, key: &str, text: String) {
        let is_told = self.notes.iter().any(|note| note.key == key && note.text == text);
        if !is_told {
            let key = key.to_owned();
            self.notes.push(ScriptNote { key, text });
        }
    }

    /// Settings of quantization: those of bitsandbytes, or a map of them.
    fn quantization(&mut self, run: &Run<'_>, bound: &Bound) {
        match (&bound.value.known, run.result(&bound.value)) {
            (_, Some(call)) if call.short_name() == "BitsAndBytesConfig" => {
                for ground in &bound.value.grounds {
                    self.note("load_in_4bit", ground.to_string());
                }
                if let Some(given) = NamedArguments::of(Some(call), QUANTIZATION) {
                    self.add_arguments(run, &given);
                }
            }
            (Known::Map(entries), _) => self.entries(run, bound, entries),
            (Known::Plain(Value::Null), _) => {}
            _ => {
                let location = run.location(bound.line);
                self.note(
                    "load_in_4bit",
                    format!(
                        "{location}: `{QUANTIZATION_SETTINGS}={}` is not known here: the weights are taken as they are; write \
                         `precision` in the study",
                        bound.text
                    ),
                );
            }
        }
    }

    /// Arguments that a trainer hands on to the model that it loads.
    fn for_loading(&mut self, run: &Run<'_>, training: &Training<'_>) {
        let config = training
            .config
            .and_then(|config| config.argument("model_init_kwargs", None));
        let Some(bound) = config.or_else(|| training.argument("model_init_kwargs")) else {
            return;
        };
        match &bound.value.known {
            Known::Map(entries) => {
                if let Some(value) = bound.value.entry(QUANTIZATION_SETTINGS) {
                    let settings = Bound {
                        value: value.clone(),
                        ..bound.clone()
                    };
                    self.quantization(run, &settings);
                }
                self.entries(run, bound, entries);
            }
            Known::Plain(Value::Null) => {}
            _ => self.add(run, "model_init_kwargs", bound),
        }
    }

    fn entries(&mut self, run: &Run<'_>, bound: &Bound, entries: &[(String, Evaluated)]) {
        for ground in &bound.value.grounds {
            self.note("load_in_4bit", ground.to_string());
        }
        for (name, value) in entries.iter().filter(|(name, _)| !PASSED_OVER.contains(&name.as_str())) {
            let own = Bound {
                value: value.clone(),
                ..bound.clone()
            };
            self.add(run, name, &own);
        }
    }
}

impl<'r> NamedArguments<'r> {
    fn of(call: Option<&'r Called>, positions: &'static [&'static str]) -> Option<Self> {
        let call = call?;
        Some(Self {
            call,
            positions,
            passed_over: &[],
        })
    }

    /// Arguments by their names, of those with two values the later one.
    fn by_name(&self) -> Vec<(&'r str, &'r Bound)> {
        let call: &'r Called = self.call;
        let positions = self.positions.iter().copied();
        let mut all: Vec<(&'r str, &'r Bound)> = positions.zip(&call.arguments.positional).collect();
        let named = call.arguments.named.iter();
        all.extend(named.map(|(name, bound)| (name.as_str(), bound)));
        let mut seen = BTreeSet::new();
        all.reverse();
        all.retain(|(name, _)| seen.insert(*name));
        all.reverse();
        all
    }
}

/// Whether a field of a script's class is one of a trainer's settings, by the tables of TRL's keys. Words for adapters are none: the
/// adapter's own call says them.
fn is_of_trainers(name: &str) -> bool {
    let keys = Tool::Trl.keys();
    let is_setting = keys.settings.iter().any(|(own, key)| {
        let is_of_adapter = || setting(own).is_none_or(|row| row.field.starts_with("adapter"));
        *key == name && !is_of_adapter()
    });
    let words = [
        (keys.precision)(Precision::Bf16),
        (keys.checkpointing)(Checkpointing::Offload),
    ];
    is_setting
        || words.iter().flatten().flatten().any(|(key, _)| *key == name)
        || keys.schedule_arguments == Some(name)
        || Tool::Trl.known_keys().class_of(name).is_some()
        || OF_NO_BYTES.contains(&name)
        || BESIDE_TABLES.contains(&name)
}

/// The key of an argument.
fn renamed(name: &str) -> &str {
    match name {
        "pretrained_model_name_or_path" => "model_name_or_path",
        other => other,
    }
}
