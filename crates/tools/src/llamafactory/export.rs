//! `llamafactory.yaml` and `dataset_info.json`: what `llamafactory-cli train` (0.9.5) reads.
//!
//! LLaMA-Factory knows data by name: the names stand in `dataset_info.json`, beside which it looks for files with
//! relative paths. Its `template` is left out, so that it takes the tokenizer's own chat template, as the trials did.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::Tool;
use crate::export::draft::{Advice, Draft, ROWS, column};
use crate::export::hf_trainer::{TRAINER_SHARES, TrainerWords};
use crate::export::modules::module_names;
use crate::export::reading::Reading;
use crate::export::{ExportInput, ExportRow, RenderError, Rendered, TokenFiles};
use peft_tune_core::python_json;
use peft_tune_core::recipe::{
    AdapterSettings, DataFormat, DataSettings, HeldOut, HubDataSet, HubPart, LossOn, Precision, Recipe, TargetModules,
    TargetPreset, TemplateTargets,
};

const DATA_SETS: &str = "dataset_info.json";

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "llamafactory.yaml and dataset_info.json, for llamafactory-cli train",
    file_name: "llamafactory.yaml",
    other_trainers: &[],
    reading: Some(Reading {
        // It has chat templates of its own, or takes the tokenizer's apart.
        formats: &[],
        template_targets: TemplateTargets::All,
        renames_columns: true,
        passes_over_columns: true,
        cuts: false,
        evaluates: |_| true,
        mixes_tokens: false,
        // By transformers 5.6, the newest that it takes; later ones count what is predicted.
        counts_first_tokens: true,
        tokens: TokenFiles::SavedDataset,
    }),
    sharding: Some(TRAINER_SHARES),
    asks_for_answer_marks: false,
    render,
};

const WORDS: TrainerWords = TrainerWords {
    epochs: "num_train_epochs",
    warmup_share: "warmup_ratio",
};

fn render(input: &ExportInput<'_>, directory: &Path) -> Result<Rendered, RenderError> {
    let recipe = input.recipe;
    if input.data_format() == DataFormat::Tokenized && input.known.saved_rows.is_none() {
        return Err(RenderError::Refused {
            tool: Tool::LlamaFactory,
            field: "data.format",
            reason: "it reads no files of token ids; let the rows be written for it, without --no-data",
        });
    }
    let mut draft = Draft::new(Tool::LlamaFactory, input);
    model(&mut draft, recipe);
    draft.say("method");
    if let Some(adapter) = &recipe.adapter {
        self::adapter(&mut draft, adapter);
    }
    let data_sets = data(&mut draft, &recipe.data, directory)?;
    held_out(&mut draft, recipe);
    batch(&mut draft, recipe);
    let words = draft.optimizer_words();
    draft.keys(words);
    let words = draft.course_words(WORDS);
    draft.keys(words);
    draft.say_seed("seed");
    draft.key("logging_steps", 1);
    draft.key("report_to", "none");
    draft.key("output_dir", input.output_folder());
    let offload = draft.offload_file();
    let mut rendered = draft.finish("llamafactory-cli train", Advice::TRAIN_HERE, "");
    rendered.files.extend(offload);
    let data_sets = serde_json::to_string_pretty(&data_sets).unwrap_or_default() + "\n";
    rendered.files.push((DATA_SETS, data_sets));
    Ok(rendered)
}

fn model(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.said(&["model"]);
    draft.key("model_name_or_path", recipe.model.as_str());
    draft.key("trust_remote_code", false);
    let words = draft.precision_words();
    draft.keys(words);
    let stored = draft.input.known.model_folder.and_then(stored_in);
    if let Some(stored) = stored.filter(|stored| recipe.precision == Precision::Fp32 && stored != "float32") {
        draft.warn(
            "precision",
            format!(
                "LLaMA-Factory computes in what the base is stored in, {stored}; store it in float32, or train in bf16"
            ),
        );
    }
    let words = draft.attention_words();
    draft.keys(words);
    let words = draft.chosen_words();
    draft.keys(words);
    if recipe.batch.packing {
        draft.warn("batch.packing", "needs the flash-attn package");
    }
}

/// What the weights of a model are stored in, by its `config.json`.
fn stored_in(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("config.json")).ok()?;
    let config: Value = python_json::from_str(&text).ok()?;
    let stored = config.get("dtype").or_else(|| config.get("torch_dtype"))?;
    Some(stored.as_str()?.to_owned())
}

fn adapter(draft: &mut Draft<'_>, adapter: &AdapterSettings) {
    draft.say("rank");
    draft.say_whole_alpha(adapter.alpha);
    draft.say("dropout");
    let targets = match &adapter.target_modules {
        TargetModules::Preset(TargetPreset::AllLinear) => "all".to_owned(),
        targets => module_names(targets, draft.input.known.architecture).join(","),
    };
    draft.say_as("target_modules", targets);
    draft.say_each(&["rslora", "dora"]);
    let words = draft.init_words(adapter.init);
    draft.keys(words);
    draft.said(&["adapter.modules_to_save", "adapter.adapter_init"]);
    if !adapter.modules_to_save.is_empty() {
        draft.key("additional_target", adapter.modules_to_save.join(","));
    }
    if let Some(folder) = &adapter.adapter_init {
        draft.key("adapter_name_or_path", folder.to_string_lossy().into_owned());
    }
}

/// Writes the data keys and returns the content of `dataset_info.json`.
fn data(draft: &mut Draft<'_>, data: &DataSettings, directory: &Path) -> Result<Value, RenderError> {
    draft.said(&ROWS);
    let format = draft.input.data_format();
    let train = named("train", data.train.files());
    let held_out = named("held_out", data.held_out.files().iter());
    let saved = draft.input.known.saved_rows;
    // Only its stage `pt` takes texts, and only the other knows which tokens of a prompt are learnt.
    let is_of_texts = format == DataFormat::Text && saved.is_none();
    draft.key("stage", if is_of_texts { "pt" } else { "sft" });
    draft.key("do_train", true);
    draft.key("dataset", join(&train));
    mixture(draft, data)?;
    if !held_out.is_empty() {
        draft.key("eval_dataset", join(&held_out));
    }
    // Where the files are: relative to the folder that the tool is started in.
    let folder = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    draft.key("dataset_dir", folder.to_string_lossy().into_owned());
    if let Some(saved) = saved {
        // It goes before the data sets above.
        draft.key("tokenized_path", saved.to_string_lossy().into_owned());
    }
    if !is_of_texts {
        draft.key("train_on_prompt", data.loss_on == LossOn::All);
    }
    if let Some(rows) = data.max_rows {
        draft.key("max_samples", rows);
    }
    match saved {
        // Its rows are as long as they may be, and say what is learnt.
        Some(_) => draft.said(&["data.long_rows", "data.template_targets"]),
        None => warn_of_reading(draft, data),
    }
    let entries = train.iter().chain(&held_out);
    let entries: Map<String, Value> = entries
        .map(|(name, path)| (name.clone(), entry(format, path, data)))
        .collect();
    Ok(Value::Object(entries))
}

/// Says what is different of rows that the tool makes tokens of.
fn warn_of_reading(draft: &mut Draft<'_>, data: &DataSettings) {
    if data.chat_template.is_some() {
        draft.warn(
            "data.chat_template",
            "LLaMA-Factory takes the template from the tokenizer; put yours into tokenizer_config.json",
        );
    }
    if draft.input.data_format() == DataFormat::Auto {
        draft.warn(
            "data.format",
            "the rows were not recognised; describe them in dataset_info.json",
        );
    }
    if data.columns.contains_key("tools") {
        draft.warn("data.columns", "tools must be JSON text there; convert the column");
    }
    let files = data.train.files().chain(data.held_out.files());
    let mut sets = files.filter_map(|path| HubDataSet::of(path)?.ok());
    if sets.any(|set| set.revision.is_some() || matches!(set.part, HubPart::File(_))) {
        draft.warn(
            "data.train",
            "LLaMA-Factory loads whole data sets in their newest revision; download the files and name them",
        );
    }
}

/// The shares of the sets, which are one file each there.
fn mixture(draft: &mut Draft<'_>, data: &DataSettings) -> Result<(), RenderError> {
    let sets = data.train.sets();
    if sets.is_empty() {
        return Ok(());
    }
    let refused = |field, reason| RenderError::Refused {
        tool: Tool::LlamaFactory,
        field,
        reason,
    };
    if sets.iter().any(|set| set.files.len() != 1) {
        return Err(refused(
            "data.train",
            "each set that it mixes is one file; put the files of a set together",
        ));
    }
    if !data.held_out.files().is_empty() {
        return Err(refused(
            "data.held_out",
            "it mixes held-out files by the weights of the training files, too; hold out a fraction",
        ));
    }
    let weights: Vec<String> = sets.iter().map(|set| set.weight.to_string()).collect();
    draft.key("mix_strategy", "interleave_over");
    draft.key("interleave_probs", weights.join(","));
    draft.warn(
        "data.train",
        "LLaMA-Factory draws by chance whose row is next, an epoch there ends once each set is used up, and rows that it \
         repeats may be held out; set `max_steps` for as many steps",
    );
    Ok(())
}

/// What `dataset_info.json` says of one file.
fn entry(format: DataFormat, path: &Path, data: &DataSettings) -> Value {
    let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (formatting, columns, tags) = match format {
        DataFormat::Messages => (
            "sharegpt",
            json!({"messages": column(data, "messages")}),
            Some(json!({
                "role_tag": "role", "content_tag": "content",
                "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system",
            })),
        ),
        DataFormat::Sharegpt => (
            "sharegpt",
            json!({"messages": column(data, "conversations")}),
            Some(json!({
                "role_tag": "from", "content_tag": "value",
                "user_tag": "human", "assistant_tag": "gpt", "system_tag": "system",
            })),
        ),
        DataFormat::PromptCompletion => (
            "alpaca",
            json!({"prompt": column(data, "prompt"), "response": column(data, "completion")}),
            None,
        ),
        DataFormat::Text => ("alpaca", json!({"prompt": column(data, "text")}), None),
        // Recipes that compare answers are refused before.
        DataFormat::Alpaca
        | DataFormat::Auto
        | DataFormat::Tokenized
        | DataFormat::Preference
        | DataFormat::UnpairedPreference => (
            "alpaca",
            json!({
                "prompt": column(data, "instruction"),
                "query": column(data, "input"),
                "response": column(data, "output"),
            }),
            None,
        ),
    };
    let mut entry = match HubDataSet::of(path).and_then(Result::ok) {
        Some(set) => {
            let mut entry = json!({"hf_hub_url": set.id, "split": set.split().unwrap_or("train")});
            if let Some(name) = set.configuration() {
                entry["subset"] = json!(name);
            }
            entry
        }
        None => json!({"file_name": file.to_string_lossy()}),
    };
    entry["formatting"] = json!(formatting);
    entry["columns"] = columns;
    if let Some(tags) = tags {
        entry["tags"] = tags;
    }
    entry
}

fn held_out(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.said(&["data.held_out"]);
    if let HeldOut::Fraction(fraction) = &recipe.data.held_out {
        draft.key("val_size", *fraction);
        if draft.input.known.saved_rows.is_none() {
            draft.warn_of_other_rows();
        }
    }
    let words = draft.evaluation_words();
    draft.keys(words);
    draft.key("per_device_eval_batch_size", recipe.batch.micro_batch);
}

fn batch(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.say_each(&["sequence_length", "packing"]);
    // Keeps packed documents from attending to each other.
    draft.key("neat_packing", recipe.batch.packing);
    draft.say_each(&["micro_batch", "gradient_accumulation"]);
    let words = draft.checkpointing_words();
    draft.keys(words);
    let words = draft.reading_words("preprocessing_num_workers");
    draft.keys(words);
    draft.said(&["training.shuffle"]);
    draft.key("disable_shuffling", !recipe.training.shuffle);
    if recipe.batch.group_by_length {
        draft.warn(
            "batch.group_by_length",
            "set `group_by_length: true` with transformers 4, `train_sampling_strategy: group_by_length` with 5",
        );
    }
}

/// Files with a name each: `train`, `train_2`, ...
fn named<'a>(name: &str, paths: impl Iterator<Item = &'a PathBuf>) -> Vec<(String, PathBuf)> {
    let name_of = |index: usize| match index {
        0 => name.to_owned(),
        index => format!("{name}_{}", index + 1),
    };
    paths
        .enumerate()
        .map(|(index, path)| (name_of(index), path.clone()))
        .collect()
}

fn join(named: &[(String, PathBuf)]) -> String {
    named
        .iter()
        .map(|(name, _)| name.as_str())
        .collect::<Vec<_>>()
        .join(",")
}
