//! `trl_sft.yaml`: the file that `trl sft --config` (TRL 1.16, transformers 5.23) reads, and those of TRL's trainers of preferences.
//!
//! TRL refuses unknown keys and has defaults of its own (gradient checkpointing is on, for one), so everything that the
//! recipe decides is written out, and nothing else but the output folder. Its `assistant_only_loss` asks for a chat template that
//! marks answers: where the model's own does not, one that does is written beside the file.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::dataset_card::{self, SplitFiles};
use super::preference;
use crate::Tool;
use crate::export::draft::{Advice, Draft, Word, builder_of, on_hub};
use crate::export::hf_trainer::TrainerWords;
use crate::export::reading::Reading;
use crate::export::{ExportRow, RenderError, TokenFiles};
use crate::keys::ANYWHERE;
use crate::peft::export::{target_modules, whole_if_possible};
use peft_tune_core::recipe::{
    AdapterSettings, DataFormat, DataSettings, HeldOut, HubDataSet, HubPart, LossOn, Recipe, TemplateTargets,
};

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "trl_sft.yaml, for trl sft --config",
    file_name: "trl_sft.yaml",
    other_trainers: preference::FILES,
    reading: Some(Reading {
        formats: &[
            DataFormat::Messages,
            DataFormat::PromptCompletion,
            DataFormat::Text,
            DataFormat::Tokenized,
            DataFormat::Preference,
            DataFormat::UnpairedPreference,
        ],
        template_targets: TemplateTargets::All,
        renames_columns: false,
        passes_over_columns: false,
        cuts: true,
        evaluates: |data| splits(data).is_some(),
        mixes_tokens: true,
        counts_first_tokens: false,
        tokens: TokenFiles::Jsonl,
    }),
    sharding: None,
    asks_for_answer_marks: true,
    render: |input, directory| {
        let recipe = input.recipe;
        let mut draft = Draft::new(Tool::Trl, input);
        model(&mut draft, recipe);
        draft.say_as("method", recipe.adapter.is_some());
        if let Some(adapter) = &recipe.adapter {
            self::adapter(&mut draft, adapter);
        }
        preference::say(&mut draft, recipe);
        let card = data(&mut draft, &recipe.data, directory)?;
        batch(&mut draft, recipe);
        let words = draft.optimizer_words();
        draft.keys(words);
        let words = draft.course_words(WORDS);
        draft.keys(words);
        evaluation(&mut draft, recipe);
        draft.say_seed("seed");
        draft.key("output_dir", input.output_folder());
        let offload = draft.offload_file();
        let mut rendered = draft.finish(preference::usage(recipe.trainer), ADVICE, "");
        rendered.files.extend(preference::script(recipe.trainer));
        rendered.files.extend(offload);
        rendered.files.extend(card);
        let template = input.marked_template().map(|text| (CHAT_TEMPLATE, text.to_owned()));
        rendered.files.extend(template);
        Ok(rendered)
    },
};

/// The chat template with marks around answers, where the model's own has none.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

const WORDS: TrainerWords = TrainerWords {
    epochs: "num_train_epochs",
    // Below 1 it is a fraction there too.
    warmup_share: "warmup_steps",
};

const ADVICE: Advice = Advice {
    adapter: "pass the LoraConfig of --format peft to SFTTrainer yourself",
    other: "pass it in code, or train with `peft-tune train`",
};

fn model(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.said(&["model"]);
    draft.key("model_name_or_path", recipe.model.as_str());
    let words = draft.precision_words();
    draft.keys(words);
    let words = draft.attention_words();
    draft.keys(words);
    let words = draft.chosen_words();
    draft.keys(words);
    if recipe.batch.packing && recipe.trainer.is_sft() {
        draft.warn(
            "batch.packing",
            "needs the flash-attn package, or documents attend to each other",
        );
    }
}

fn adapter(draft: &mut Draft<'_>, adapter: &AdapterSettings) {
    draft.say("rank");
    draft.say_as("alpha", whole_if_possible(adapter.alpha));
    draft.say("dropout");
    let targets = match target_modules(adapter, draft.input.known.architecture) {
        Value::String(name) => json!([name]),
        Value::Array(names) => match &names[..] {
            // Of a list of one TRL makes a text, which PEFT compares with whole names.
            [Value::String(name)] => json!([format!("{ANYWHERE}{}", name.replace('.', "\\."))]),
            _ => json!(names),
        },
        other => other,
    };
    draft.say_as("target_modules", targets);
    draft.say_each(&["rslora", "dora"]);
    draft.said(&["adapter.modules_to_save", "adapter.target_parameters"]);
    if !adapter.target_parameters.is_empty() {
        draft.key("lora_target_parameters", adapter.target_parameters.clone());
    }
    if !adapter.modules_to_save.is_empty() {
        draft.key("lora_modules_to_save", adapter.modules_to_save.clone());
    }
}

/// Writes the data keys, and returns the file that says which rows are evaluated, where one does.
fn data(
    draft: &mut Draft<'_>,
    data: &DataSettings,
    directory: &Path,
) -> Result<Option<(&'static str, String)>, RenderError> {
    draft.said(&["data.train", "data.max_rows", "data.chat_template"]);
    let mut card = None;
    let is_text = match splits(data) {
        Some(Splits::OfFiles(files)) => {
            let folder = directory.join(dataset_card::FOLDER);
            let folder = std::path::absolute(&folder).unwrap_or(folder);
            draft.key("dataset_name", folder.to_string_lossy().into_owned());
            say_splits(draft, [dataset_card::TRAIN, dataset_card::HELD_OUT]);
            let config = Tool::Trl.file_for(draft.recipe().trainer).unwrap_or_default();
            card = Some((dataset_card::FILE, files.to_card(config)));
            files.train.iter().any(|file| builder_of(file) == "text")
        }
        Some(Splits::OnHub { train, held_out }) => {
            draft.key("dataset_name", train.id.clone());
            if let Some(name) = train.configuration() {
                draft.key("dataset_config", name);
            }
            say_splits(draft, [&train, &held_out].map(|set| set.split().unwrap_or("train")));
            false
        }
        None => one_split(draft, data)?,
    };
    if is_text {
        draft.warn(
            "data.train",
            "TRL takes each line of a text file for a row; write JSONL rows of `text`",
        );
    }
    if !draft.recipe().trainer.is_sft() {
        of_preferences(draft, data);
        return Ok(card);
    }
    let written = draft.input.marked_template().map(|_| directory.join(CHAT_TEMPLATE));
    let written = written.map(|path| std::path::absolute(&path).unwrap_or(path));
    if let Some(template) = written.as_ref().or(data.chat_template.as_ref()) {
        draft.key("chat_template_path", template.to_string_lossy().into_owned());
    }
    warn_of_columns(draft, data);
    targets(draft, data);
    Ok(card)
}

/// Notes what trainers of preferences read of the rows: their format alone, in the model's own chat template.
fn of_preferences(draft: &mut Draft<'_>, data: &DataSettings) {
    draft.said(&["data.format", "data.loss_on"]);
    if data.chat_template.is_some() {
        draft.warn(
            "data.chat_template",
            "TRL's trainers of preferences take the chat template of the model's tokenizer alone; put it there",
        );
    }
    warn_of_columns(draft, data);
}

fn warn_of_columns(draft: &mut Draft<'_>, data: &DataSettings) {
    if !data.columns.is_empty() {
        draft.warn(
            "data.columns",
            "TRL renames no columns; let the rows be written for it, without --no-data",
        );
    }
}

fn say_splits(draft: &mut Draft<'_>, [train, held_out]: [&str; 2]) {
    draft.key("dataset_train_split", train);
    draft.key("dataset_test_split", held_out);
}

/// Rows to train on and rows to evaluate, in the ways in which TRL takes both.
enum Splits {
    OfFiles(SplitFiles),
    /// Two splits of one data set of the hub.
    OnHub {
        train: HubDataSet,
        held_out: HubDataSet,
    },
}

/// The splits of rows that are held out by themselves; `None` where the rows to train on are all that TRL can be told of.
fn splits(data: &DataSettings) -> Option<Splits> {
    let held_out = data.held_out.files();
    if held_out.is_empty() || data.max_rows.is_some() || !data.train.sets().is_empty() {
        return None;
    }
    let train: Vec<&PathBuf> = data.train.files().collect();
    let builder = builder_of(train.first()?);
    // A folder has one builder for all of its splits.
    let is_file = |path: &&PathBuf| !HubDataSet::is_written(path) && builder_of(path) == builder;
    if train.iter().copied().chain(held_out).all(|path| is_file(&path)) {
        return Some(Splits::OfFiles(SplitFiles {
            train: train.into_iter().cloned().collect(),
            held_out: held_out.to_vec(),
        }));
    }
    let whole = |path: &Path| {
        let set = HubDataSet::of(path)?.ok()?;
        (set.revision.is_none() && matches!(set.part, HubPart::Split { .. })).then_some(set)
    };
    match (&train[..], held_out) {
        ([train], [held_out]) => {
            let (train, held_out) = (whole(train)?, whole(held_out)?);
            let is_one = train.id == held_out.id && train.configuration() == held_out.configuration();
            is_one.then_some(Splits::OnHub { train, held_out })
        }
        _ => None,
    }
}

/// Writes the data sets whose rows are all trained on, but for a share. Returns whether they are plain text.
fn one_split(draft: &mut Draft<'_>, data: &DataSettings) -> Result<bool, RenderError> {
    let (mut items, mut is_text) = (Vec::new(), false);
    match data.train.sets() {
        [] => {
            let files: Vec<_> = data.train.files().collect();
            is_text = loads(draft, &files, data.max_rows, &mut items);
        }
        sets => {
            for set in sets {
                let before = items.len();
                is_text |= loads(draft, &set.files.iter().collect::<Vec<_>>(), data.max_rows, &mut items);
                if items.len() != before + 1 {
                    return Err(RenderError::Refused {
                        tool: Tool::Trl,
                        field: "data.train",
                        reason: "each set that it mixes is one data set, of the hub or of files; put a set's files together",
                    });
                }
                items[before].push(("fraction", json!(set.weight)));
            }
            draft.warn(
                "data.train",
                "TRL takes of each set its first rows, as many as make these shares without repeating one: an epoch is shorter \
                 there; set `max_steps` for as many steps",
            );
        }
    }
    draft.yaml.block("datasets", &items);
    if data.max_rows.is_some() && items.len() > 1 && data.train.sets().is_empty() {
        draft.warn(
            "data.max_rows",
            "is applied to each data set by itself; lower it in `split`",
        );
    }
    Ok(is_text)
}

/// Adds what loads some files, and what loads data sets of the hub. Returns whether the files are plain text.
fn loads(draft: &mut Draft<'_>, paths: &[&PathBuf], max_rows: Option<usize>, items: &mut Vec<Vec<Word>>) -> bool {
    let (sets, files): (Vec<_>, Vec<_>) = paths
        .iter()
        .copied()
        .partition(|path: &&PathBuf| HubDataSet::is_written(path));
    let builder = files.first().map_or("json", |path| builder_of(path));
    if !files.is_empty() {
        let of_files = match &files[..] {
            [one] => json!(one),
            many => json!(many),
        };
        let split = max_rows.map_or("train".to_owned(), |rows| format!("train[:{rows}]"));
        items.push(vec![
            ("path", json!(builder)),
            ("data_files", of_files),
            ("split", json!(split)),
        ]);
    }
    for (mut words, split) in sets.iter().filter_map(|path| on_hub(path, max_rows)) {
        if words.iter().any(|(word, _)| *word == "revision") {
            words.retain(|(word, _)| *word != "revision");
            draft.warn(
                "data.train",
                "TRL loads the newest revision of a data set; download another one and name its files",
            );
        }
        words.push(("split", json!(split)));
        items.push(words);
    }
    builder == "text"
}

/// Which tokens count in the loss.
fn targets(draft: &mut Draft<'_>, data: &DataSettings) {
    draft.said(&["data.format", "data.loss_on"]);
    match (draft.input.data_format(), data.loss_on) {
        (DataFormat::Alpaca | DataFormat::Sharegpt, _) => {
            draft.warn(
                "data.format",
                "TRL reads `messages` or `prompt` and `completion`; let the rows be written for it, without --no-data",
            );
        }
        (DataFormat::Auto, LossOn::Completions) => draft.warn(
            "data.loss_on",
            "write data.format for chats, so that assistant_only_loss can be set; TRL trains on whole chats otherwise",
        ),
        (DataFormat::Messages, LossOn::Completions) => {
            draft.key("assistant_only_loss", true);
            if draft.input.known.marks.is_none() {
                draft.warn(
                    "data.loss_on",
                    "the chat template must mark answers with {% generation %}, and TRL stops where it does not: name one that \
                     does in data.chat_template",
                );
            }
        }
        (DataFormat::PromptCompletion, loss_on) => {
            draft.key("completion_only_loss", loss_on == LossOn::Completions);
        }
        (DataFormat::Text | DataFormat::Tokenized, _) | (DataFormat::Auto | DataFormat::Messages, LossOn::All) => {
            draft.key("assistant_only_loss", false);
        }
        // Supervised fine-tuning reads none of them.
        (DataFormat::Preference | DataFormat::UnpairedPreference, _) => {}
    }
}

fn batch(draft: &mut Draft<'_>, recipe: &Recipe) {
    match recipe.trainer.is_sft() {
        true => draft.say_each(&["sequence_length", "packing"]),
        false => preference::rows(draft, recipe),
    }
    if recipe.batch.packing && recipe.trainer.is_sft() {
        draft.key("packing_strategy", "bfd");
        draft.key("eval_packing", false);
    }
    draft.say_each(&["micro_batch", "gradient_accumulation"]);
    let words = draft.reading_words("dataset_num_proc");
    draft.keys(words);
    let words = preference::checkpointing_words(draft, recipe);
    draft.keys(words);
    sharding(draft, recipe);
}

/// FSDP where it shares weights out. Layers are wrapped by the classes that transformers names for the model.
fn sharding(draft: &mut Draft<'_>, recipe: &Recipe) {
    if !draft.shares_weights() {
        return;
    }
    draft.key("fsdp", true);
    let words = [
        ("version", json!(2)),
        ("auto_wrap_policy", json!("TRANSFORMER_BASED_WRAP")),
        ("reshard_after_forward", json!(true)),
    ];
    draft.yaml.map("fsdp_config", &words);
    if recipe.precision.is_quantized() {
        // FSDP leaves bytes whole on each device; those in the form of numbers it shares out.
        draft.key("bnb_4bit_quant_storage", "bfloat16");
    }
}

fn evaluation(draft: &mut Draft<'_>, recipe: &Recipe) {
    let sampling = preference::sampling_words(draft, recipe);
    draft.keys(sampling);
    draft.said(&["data.held_out"]);
    match &recipe.data.held_out {
        HeldOut::Fraction(fraction) => {
            draft.key("test_split_size", *fraction);
            draft.warn_of_other_rows();
        }
        HeldOut::File(_) | HeldOut::Files(_) if splits(&recipe.data).is_some() => {}
        HeldOut::File(_) | HeldOut::Files(_) => {
            draft.said(&["training.evaluate_every", "training.evaluation_rows"]);
            draft.key("eval_strategy", "no");
            draft.warn(
                "data.held_out",
                "TRL takes no held-out file beside sets that are mixed, a part of the rows (`max_rows`), or data of another kind; \
                 evaluate afterwards",
            );
            return;
        }
    }
    let words = draft.evaluation_words();
    draft.keys(words);
    draft.key("per_device_eval_batch_size", recipe.batch.micro_batch);
}
