//! LLaMA-Factory's YAML, with the `dataset_info.json` that its data sets stand in.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::memory;
use crate::Tool;
use crate::import::adapter_start::PISSA_INIT;
use crate::import::data::{is_file, located, on_hub, rename};
use crate::import::{Keys, Reader, StackFileError, adapter, precision, preference, text_of, trainer};
use peft_tune_core::recipe::{
    Checkpointing, DataFormat, DataSettings, HeldOut, LossOn, ScheduleKind, TargetModules, TargetPreset, TrainingData,
    TrainingLength,
};

const ADAPTER: adapter::AdapterKeys = adapter::AdapterKeys {
    targets: "lora_target",
    modules_to_save: "additional_target",
    // It has none.
    target_parameters: "lora_target_parameters",
    layers: "layers_to_transform",
    rank_pattern: "rank_pattern",
    alpha_pattern: "alpha_pattern",
    init: PISSA_INIT,
};

const PRECISION: precision::PrecisionKeys = precision::PrecisionKeys {
    dtype: &[],
    counts_bits: true,
    is_double: |keys| Ok(keys.flag("double_quantization")?.unwrap_or(true)),
    ..precision::PrecisionKeys::NONE
};

const TRAINER: trainer::TrainerKeys = trainer::TrainerKeys {
    usual_optimizer: "adamw_torch",
    ..trainer::TrainerKeys::OF_TRANSFORMERS
};

/// Flags that go before the optimizer's name, each with the optimizer that is taken then.
const OPTIMIZERS: [(&str, &str); 5] = [
    ("use_galore", "galore_adamw"),
    ("use_apollo", "apollo_adamw"),
    ("use_badam", "badam"),
    ("use_adam_mini", "adam_mini"),
    ("use_muon", "muon"),
];

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    reader.recipe.model = keys.text("model_name_or_path")?.unwrap_or_default();
    defaults(reader);
    match keys.text("finetuning_type")?.as_deref() {
        None | Some("lora") => {}
        Some("full") => reader.recipe.adapter = None,
        Some(other) => return Err(keys.wrong("finetuning_type", &other.into(), "write lora or full")),
    }
    reader.said("method");
    preference::factor(reader, keys, &["pref_beta", "dpo_beta", "orpo_beta"])?;
    precision::read(reader, &PRECISION)?;
    reader.values(&[Tool::LlamaFactory])?;
    adapter::read(reader, &ADAPTER)?;
    if let Some(adapter) = &mut reader.recipe.adapter {
        if !keys.has("lora_alpha") {
            // Its own default.
            adapter.alpha = 2.0 * adapter.rank as f64;
        }
        let folder = keys.text("adapter_name_or_path")?;
        adapter.adapter_init = folder.map(|folder| located(keys.path(), &folder));
    }
    trainer::read(reader, &TRAINER)?;
    let is_off = keys.flag("disable_gradient_checkpointing")?;
    reader.recomputes(is_off.map(|is_off| !is_off), keys.flag("use_unsloth_gc")?);
    packing(reader)?;
    memory::read(reader)?;
    for (flag, name) in OPTIMIZERS {
        if keys.flag(flag)?.unwrap_or(false) {
            (reader.choices.optimizer, reader.choices.foreach) = (None, None);
            reader.optimizer_of(&format!("{flag}: true"), name);
            break;
        }
    }
    if keys.flag("disable_shuffling")?.unwrap_or(false) {
        reader.recipe.training.shuffle = false;
    }
    data(reader)
}

/// Packing by either key, or by the stage. Without the second key rows in one sequence see each other there.
fn packing(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let is_by_stage = !keys.has("packing") && is_pretraining(keys)?;
    let is_neat = keys.flag("neat_packing")?.unwrap_or(false);
    if is_by_stage || is_neat {
        reader.recipe.batch.packing = true;
        reader.said("packing");
    }
    if reader.recipe.batch.packing && !is_neat {
        let words = if is_by_stage { "stage: pt" } else { "packing: true" };
        reader.note(format!(
            "`{words}` without `neat_packing`: rows of one sequence see each other there, and here they do not"
        ));
    }
    Ok(())
}

/// Whether running text is trained on, all of it and packed where nothing else is said.
fn is_pretraining(keys: &Keys<'_>) -> Result<bool, StackFileError> {
    Ok(keys.text("stage")?.as_deref() == Some("pt"))
}

/// What LLaMA-Factory (0.9.5) takes where nothing is said.
fn defaults(reader: &mut Reader<'_>) {
    let recipe = &mut reader.recipe;
    let mut adapter = adapter::default(8, 16.0, 0.0);
    adapter.target_modules = TargetModules::Preset(TargetPreset::AllLinear);
    recipe.adapter = Some(adapter);
    recipe.batch.micro_batch = 8;
    recipe.batch.sequence_length = 2048;
    recipe.gradient_checkpointing = Checkpointing::Full;
    recipe.optimizer.learning_rate = 5e-5;
    recipe.schedule.kind = ScheduleKind::Linear;
    recipe.training.length = TrainingLength::Epochs(3.0);
}

fn data(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let known = data_sets(reader)?;
    let is_pretraining = is_pretraining(keys)?;
    let train = named(reader, &known, "dataset")?;
    let held_out = named(reader, &known, "eval_dataset")?;
    let train = mixed(reader, train)?;
    let data = &mut reader.recipe.data;
    data.train = train;
    if is_pretraining {
        data.format = DataFormat::Text;
        if let Some(own) = data.columns.remove("prompt") {
            rename(data, "text", Some(own));
        }
    }
    data.loss_on = match is_pretraining || keys.flag("train_on_prompt")?.unwrap_or(false) {
        true => LossOn::All,
        false => LossOn::Completions,
    };
    data.max_rows = keys.count("max_samples")?.map(|rows| rows as usize);
    let share = reader.held_out_share(keys, "val_size")?;
    reader.recipe.data.held_out = share.map_or_else(|| held_out.into(), HeldOut::Fraction);
    if let Some(template) = keys.text("template")? {
        reader.unknown_word("template", &template, "the tokenizer's own chat template");
    }
    Ok(())
}

/// The training files, mixed where the file says so.
fn mixed(reader: &mut Reader<'_>, files: Vec<PathBuf>) -> Result<TrainingData, StackFileError> {
    let keys = reader.keys;
    let strategy = keys.text("mix_strategy")?.unwrap_or_default();
    let given = keys.names("interleave_probs")?;
    if !strategy.starts_with("interleave") || files.len() < 2 {
        return Ok(files.into());
    }
    // Without shares it takes a row of each in turn.
    let weights: Option<Vec<f64>> = match &given {
        None => Some(vec![1.0; files.len()]),
        Some(given) => given.iter().map(|weight| weight.trim().parse().ok()).collect(),
    };
    let sets = files.iter().map(|file| vec![file.clone()]).collect();
    Ok(reader.mixture("interleave_probs", sets, weights))
}

/// What `dataset_info.json` says; nothing where it is not there.
fn data_sets(reader: &mut Reader<'_>) -> Result<Map<String, Value>, StackFileError> {
    let keys = reader.keys;
    let path = folder(keys)?.join("dataset_info.json");
    if !path.is_file() {
        return Ok(Map::new());
    }
    match serde_json::from_str(&text_of(&path)?) {
        Ok(Value::Object(all)) => Ok(all),
        _ => {
            reader.data_note(format!(
                "{} is no JSON with data sets: name the file with `--data`",
                path.display()
            ));
            Ok(Map::new())
        }
    }
}

fn folder(keys: &Keys<'_>) -> Result<PathBuf, StackFileError> {
    let folder = keys.text("dataset_dir")?.unwrap_or_else(|| "data".into());
    Ok(located(keys.path(), &folder))
}

/// The files of the data sets under a key; what a row is stands with the first.
fn named(reader: &mut Reader<'_>, known: &Map<String, Value>, key: &str) -> Result<Vec<PathBuf>, StackFileError> {
    let keys = reader.keys;
    let mut all = Vec::new();
    for name in keys.names(key)?.unwrap_or_default() {
        let entry = known.get(&name).and_then(Value::as_object);
        let file = entry.and_then(|entry| entry.get("file_name")).and_then(Value::as_str);
        if let (Some(entry), None) = (entry, file) {
            let set = Keys::new(keys.path(), entry);
            let on_hub = on_hub(&set, "hf_hub_url")?;
            if !on_hub.is_empty() {
                all.extend(on_hub);
                if key == "dataset" {
                    layout(reader, &set)?;
                }
                continue;
            }
        }
        let (Some(entry), Some(file)) = (entry, file) else {
            match is_file(keys.path(), &name) {
                true => all.push(located(keys.path(), &name)),
                false => reader.not_a_file(key, &name),
            }
            continue;
        };
        all.push(folder(keys)?.join(file));
        if key == "dataset" {
            layout(reader, &Keys::new(keys.path(), entry))?;
        }
    }
    Ok(all)
}

/// What a row of a data set is, of answers or of preferences.
fn layout(reader: &mut Reader<'_>, entry: &Keys<'_>) -> Result<(), StackFileError> {
    match reader.recipe.trainer.is_sft() {
        true => rows(&mut reader.recipe.data, entry),
        false => pairs(&mut reader.recipe.data, entry),
    }
}

/// What a row of preferences is: its columns, with the names that LLaMA-Factory has where none are given.
fn pairs(data: &mut DataSettings, entry: &Keys<'_>) -> Result<(), StackFileError> {
    let is_chat = entry.text("formatting")?.as_deref() == Some("sharegpt");
    let columns = entry.part("columns", "columns.");
    let names = match is_chat {
        true => [
            ("prompt", "messages", "conversations"),
            ("completion", "response", "completion"),
        ],
        false => [
            ("prompt", "prompt", "instruction"),
            ("completion", "response", "output"),
        ],
    };
    let answers = [
        ("chosen", "chosen", "chosen"),
        ("rejected", "rejected", "rejected"),
        ("label", "kto_tag", "label"),
    ];
    for (name, key, usual) in names.into_iter().chain(answers) {
        let own = columns.as_ref().map(|columns| columns.text(key)).transpose()?.flatten();
        rename(data, name, Some(own.unwrap_or_else(|| usual.to_owned())));
    }
    Ok(())
}

/// What a row of answers is.
fn rows(data: &mut DataSettings, entry: &Keys<'_>) -> Result<(), StackFileError> {
    let columns = entry.part("columns", "columns.");
    let column = |name: &str| columns.as_ref().map(|columns| columns.text(name)).transpose();
    if entry.text("formatting")?.as_deref() == Some("sharegpt") {
        let tags = entry.part("tags", "tags.");
        let role = tags.map(|tags| tags.text("role_tag")).transpose()?.flatten();
        let (format, name) = match role.as_deref() {
            None | Some("from") => (DataFormat::Sharegpt, "conversations"),
            Some(_) => (DataFormat::Messages, "messages"),
        };
        data.format = format;
        let own = column("messages")?.flatten();
        rename(data, name, own);
        return Ok(());
    }
    let (prompt, query, response) = (
        column("prompt")?.flatten(),
        column("query")?.flatten(),
        column("response")?.flatten(),
    );
    let is_alpaca = columns.is_none() || query.is_some();
    data.format = if is_alpaca {
        DataFormat::Alpaca
    } else {
        DataFormat::PromptCompletion
    };
    let names = if is_alpaca {
        ["instruction", "output"]
    } else {
        ["prompt", "completion"]
    };
    rename(data, names[0], prompt);
    rename(data, names[1], response);
    if is_alpaca {
        rename(data, "input", query);
    }
    Ok(())
}
