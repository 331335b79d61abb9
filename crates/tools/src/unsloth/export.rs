//! `unsloth_train.py`: a script for unsloth (2026.10), which has no configuration file.
//!
//! Every argument is one that unsloth's and TRL's functions have. What unsloth itself cannot say is written as the few
//! lines of Python that a user would add: rows of other formats become messages, prompts are masked by the markers of
//! the family's chat template.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Tool;
use crate::export::draft::{Advice, Draft, ROWS, Word, builder_of, column, on_hub};
use crate::export::hf_trainer::TrainerWords;
use crate::export::modules::{is_within, peft_targets};
use crate::export::reading::Reading;
use crate::export::rows::value_of;
use crate::export::{ExportInput, ExportRow, RenderError, Rendered, TokenFiles};
use crate::peft::export::whole_if_possible;
use peft_tune_core::recipe::{
    AdapterSettings, DataFormat, DataSettings, HeldOut, HubDataSet, LossOn, Precision, TemplateTargets, TrainingSet,
};

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "unsloth_train.py, a script for unsloth",
    file_name: "unsloth_train.py",
    other_trainers: &[],
    reading: Some(Reading {
        // Answers of chats are found by the marks of the family.
        formats: &[DataFormat::PromptCompletion, DataFormat::Text],
        template_targets: TemplateTargets::All,
        renames_columns: true,
        passes_over_columns: true,
        cuts: true,
        evaluates: |_| true,
        mixes_tokens: true,
        counts_first_tokens: false,
        tokens: TokenFiles::Jsonl,
    }),
    sharding: Some("unsloth has all weights on each device; use --format axolotl"),
    asks_for_answer_marks: false,
    render,
};

const WORDS: TrainerWords = TrainerWords {
    epochs: "num_train_epochs",
    warmup_share: "warmup_steps",
};

const ADVICE: Advice = Advice {
    adapter: "leave it out, or use --format trl",
    other: "pass it in code, or train with `peft-tune train`",
};

fn render(input: &ExportInput<'_>, _: &Path) -> Result<Rendered, RenderError> {
    let Some(adapter) = &input.recipe.adapter else {
        let tool = Tool::Unsloth;
        return Err(RenderError::NoAdapter { tool });
    };
    let mut draft = Draft::new(Tool::Unsloth, input);
    if !input.recipe.optimizer.offload.is_none() {
        draft.warn(
            "optimizer.offload",
            "unsloth takes no optimizer that updates on the host; use --format axolotl, or train with `peft-tune train`",
        );
    }
    let script = [
        "import unsloth  # before transformers and trl, which it changes\n\
         import torch\n\
         from datasets import load_dataset\n\
         from trl import SFTConfig, SFTTrainer\n\
         from unsloth import FastLanguageModel\n"
            .to_owned(),
        model(&mut draft),
        lora(&mut draft, adapter),
        data(&mut draft)?,
        trainer(&mut draft),
    ];
    Ok(draft.finish("python", ADVICE, &script.join("\n")))
}

/// A value as Python writes it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(values) => format!("[{}]", values.iter().map(python).collect::<Vec<_>>().join(", ")),
        // JSON's strings and numbers are Python's.
        other => other.to_string(),
    }
}

/// A call with one argument a line; the names are ours, the values may be anyone's.
fn call(function: &str, arguments: &[Word]) -> String {
    let lines: String = arguments
        .iter()
        .map(|(name, value)| match value {
            // Names of the script's own variables stand in a one-entry map.
            Value::Object(map) => format!("    {name}={},\n", map.keys().next().map_or("None", String::as_str)),
            value => format!("    {name}={},\n", python(value)),
        })
        .collect();
    format!("{function}(\n{lines})\n")
}

/// An expression of the script, as an argument.
fn expression(text: &str) -> Value {
    json!({ text: null })
}

fn model(draft: &mut Draft<'_>) -> String {
    let recipe = draft.recipe();
    draft.said(&["model", "adapter"]);
    let words = draft.precision_words();
    let dtype = value_of(&words, "dtype");
    if recipe.precision == Precision::Fp32 {
        draft.warn(
            "precision",
            "unsloth computes in bf16 here all the same, on a GPU that has it; set `precision: bf16`, or use --format trl",
        );
    }
    let arguments = [
        ("model_name", json!(recipe.model)),
        ("max_seq_length", json!(recipe.batch.sequence_length)),
        (
            "dtype",
            expression(&format!("torch.{}", dtype.as_str().unwrap_or_default())),
        ),
        ("load_in_4bit", value_of(&words, "load_in_4bit")),
        ("load_in_8bit", value_of(&words, "load_in_8bit")),
    ];
    call("model, tokenizer = FastLanguageModel.from_pretrained", &arguments)
}

fn lora(draft: &mut Draft<'_>, adapter: &AdapterSettings) -> String {
    let recipe = draft.recipe();
    let mut arguments = vec![("model", expression("model"))];
    arguments.extend(draft.word("rank"));
    arguments.extend(draft.word_as("alpha", whole_if_possible(adapter.alpha)));
    arguments.extend(draft.word("dropout"));
    if adapter.dropout > 0.0 {
        draft.warn(
            "adapter.dropout",
            "unsloth's fast kernels need dropout 0; expect less throughput",
        );
    }
    arguments.push(("bias", json!("none")));
    let architecture = draft.input.known.architecture;
    arguments.extend(draft.word_as("target_modules", peft_targets(adapter, architecture)));
    arguments.extend(draft.word("rslora"));
    arguments.extend(draft.init_words(adapter.init));
    arguments.extend(draft.checkpointing_words());
    arguments.push(("random_state", json!(recipe.training.seed)));
    if adapter.dora {
        arguments.extend(draft.word("dora"));
    }
    draft.said(&[
        "adapter.layers_to_transform",
        "adapter.modules_to_save",
        "adapter.target_parameters",
    ]);
    if !adapter.target_parameters.is_empty() {
        arguments.push(("target_parameters", json!(adapter.target_parameters)));
    }
    let layers = adapter.layers_to_transform.as_ref();
    if let Some(layers) = layers.filter(|_| !is_within(architecture)) {
        arguments.push(("layers_to_transform", json!(layers)));
    }
    if !adapter.modules_to_save.is_empty() {
        arguments.push(("modules_to_save", json!(adapter.modules_to_save)));
    }
    call("model = FastLanguageModel.get_peft_model", &arguments)
}

fn data(draft: &mut Draft<'_>) -> Result<String, RenderError> {
    let recipe = draft.recipe();
    let data = &recipe.data;
    let sets = data.train.sets();
    let mut text = match sets.is_empty() {
        true => load("train_dataset", &data.train.files().collect::<Vec<_>>(), data.max_rows),
        false => load_mixture(draft, sets),
    };
    match &data.held_out {
        HeldOut::Fraction(fraction) => {
            if sets.is_empty() {
                text.push_str(&format!(
                    "parts = train_dataset.train_test_split(test_size={fraction}, seed={})\n\
                     train_dataset, eval_dataset = parts[\"train\"], parts[\"test\"]\n",
                    recipe.training.seed
                ));
            }
            draft.warn_of_other_rows();
        }
        files => text.push_str(&load("eval_dataset", &files.files().iter().collect::<Vec<_>>(), None)),
    }
    draft.said(&["data.held_out"]);
    text.push_str(&to_rows(draft)?);
    Ok(text)
}

/// Loads files that are read one after another.
fn load(name: &str, paths: &[&PathBuf], rows: Option<usize>) -> String {
    match &loads(paths, rows)[..] {
        [one] => format!("{name} = {one}\n"),
        many => format!(
            "from datasets import concatenate_datasets\n{name} = {}\n",
            concatenated(many)
        ),
    }
}

fn concatenated(loads: &[String]) -> String {
    format!("concatenate_datasets([\n    {},\n])", loads.join(",\n    "))
}

/// Loads sets, of each of which `held_out` is a share that is put aside, and mixes what is left.
fn load_mixture(draft: &mut Draft<'_>, sets: &[TrainingSet]) -> String {
    let (data, seed) = (&draft.recipe().data, draft.recipe().training.seed);
    let of_set = |set: &TrainingSet| {
        let loads = loads(&set.files.iter().collect::<Vec<_>>(), data.max_rows);
        match &loads[..] {
            [one] => one.clone(),
            many => concatenated(many).replace('\n', "\n    "),
        }
    };
    let all: Vec<String> = sets.iter().map(of_set).collect();
    let mut text = format!(
        "from datasets import concatenate_datasets, interleave_datasets\nsets = [\n    {},\n]\n",
        all.join(",\n    ")
    );
    if let HeldOut::Fraction(fraction) = &data.held_out {
        text.push_str(&format!(
            "parts = [one.train_test_split(test_size={fraction}, seed={seed}) for one in sets]\n\
             sets = [part[\"train\"] for part in parts]\n\
             eval_dataset = concatenate_datasets([part[\"test\"] for part in parts])\n"
        ));
    }
    let weights = python(&json!(sets.iter().map(|set| set.weight).collect::<Vec<_>>()));
    text.push_str(&call(
        "train_dataset = interleave_datasets",
        &[
            ("datasets", expression("sets")),
            ("probabilities", expression(&weights)),
            ("seed", json!(seed)),
            ("stopping_strategy", json!("all_exhausted")),
        ],
    ));
    draft.warn(
        "data.train",
        "`datasets` draws by chance whose row is next, and an epoch there ends once each set is used up; set `max_steps` for \
         as many steps",
    );
    text
}

/// An expression for the files among `paths`, and one for each data set of the hub.
fn loads(paths: &[&PathBuf], rows: Option<usize>) -> Vec<String> {
    let (sets, files): (Vec<_>, Vec<_>) = paths
        .iter()
        .copied()
        .partition(|path: &&PathBuf| HubDataSet::is_written(path));
    let mut loads: Vec<String> = Vec::new();
    if !files.is_empty() {
        loads.push(load_files(&files, rows));
    }
    for (words, split) in sets.iter().filter_map(|path| on_hub(path, rows)) {
        let words = words.iter().map(|(word, value)| format!("{word}={}", python(value)));
        let words: Vec<String> = words.collect();
        loads.push(format!(
            "load_dataset({}, split={})",
            words.join(", "),
            python(&json!(split))
        ));
    }
    loads
}

fn load_files(files: &[&PathBuf], rows: Option<usize>) -> String {
    let builder = files.first().map_or("json", |path| builder_of(path));
    let files: Vec<_> = files.iter().map(|path| json!(path.to_string_lossy())).collect();
    let split = rows.map_or("train".to_owned(), |rows| format!("train[:{rows}]"));
    format!(
        "load_dataset({}, data_files={}, split={})",
        python(&json!(builder)),
        python(&Value::Array(files)),
        python(&json!(split))
    )
}

/// Turns rows into what TRL's trainer takes: `text`, or `prompt` and `completion`.
fn to_rows(draft: &mut Draft<'_>) -> Result<String, RenderError> {
    draft.said(&ROWS);
    let (input, data) = (draft.input, &draft.recipe().data);
    let name = |column_name: &str| python(&json!(column(data, column_name)));
    let row = match input.data_format() {
        DataFormat::Messages => format!(
            "    return {{\"text\": tokenizer.apply_chat_template(row[{}], tokenize=False)}}\n",
            name("messages")
        ),
        DataFormat::Sharegpt => format!(
            "    roles = {{\"human\": \"user\", \"gpt\": \"assistant\"}}\n    \
             turns = [{{\"role\": roles.get(turn[\"from\"], turn[\"from\"]), \"content\": turn[\"value\"]}} for turn in row[{}]]\n    \
             return {{\"text\": tokenizer.apply_chat_template(turns, tokenize=False)}}\n",
            name("conversations")
        ),
        DataFormat::PromptCompletion => format!(
            "    return {{\"prompt\": row[{}], \"completion\": row[{}]}}\n",
            name("prompt"),
            name("completion")
        ),
        DataFormat::Text => format!("    return {{\"text\": row[{}] + tokenizer.eos_token}}\n", name("text")),
        // Recipes that compare answers are refused before.
        DataFormat::Alpaca | DataFormat::Auto | DataFormat::Preference | DataFormat::UnpairedPreference => format!(
            "    question = \"\\n\".join(filter(None, [row[{}], row.get({})]))\n    \
             turns = [{{\"role\": \"user\", \"content\": question}}, {{\"role\": \"assistant\", \"content\": row[{}]}}]\n    \
             return {{\"text\": tokenizer.apply_chat_template(turns, tokenize=False)}}\n",
            name("instruction"),
            name("input"),
            name("output")
        ),
        // Its trainer takes them as they are.
        DataFormat::Tokenized => {
            return Ok("columns = [\"input_ids\", \"attention_mask\", \"labels\"]\n\
                       train_dataset = train_dataset.select_columns(columns)\n\
                       eval_dataset = eval_dataset.select_columns(columns)\n"
                .to_owned());
        }
    };
    if input.data_format() == DataFormat::Auto {
        draft.warn(
            "data.format",
            "the rows were not recognised, so they are taken for alpaca; change `to_row`",
        );
    }
    let template = match &data.chat_template {
        Some(path) => format!(
            "tokenizer.chat_template = open({}).read()\n",
            python(&json!(path.to_string_lossy()))
        ),
        None => String::new(),
    };
    Ok(format!(
        "{template}\n\ndef to_row(row):\n{row}\n\n\
         train_dataset = train_dataset.map(to_row, remove_columns=train_dataset.column_names)\n\
         eval_dataset = eval_dataset.map(to_row, remove_columns=eval_dataset.column_names)\n"
    ))
}

fn trainer(draft: &mut Draft<'_>) -> String {
    let config = call("config = SFTConfig", &arguments(draft));
    let trainer = call(
        "trainer = SFTTrainer",
        &[
            ("model", expression("model")),
            ("processing_class", expression("tokenizer")),
            ("train_dataset", expression("train_dataset")),
            ("eval_dataset", expression("eval_dataset")),
            ("args", expression("config")),
        ],
    );
    let masked = mask(draft, &draft.recipe().data);
    let folder = python(&json!(format!("{}/adapter", draft.input.output_folder())));
    format!(
        "{config}{trainer}{masked}trainer.train()\n\
         print(trainer.evaluate())\n\
         model.save_pretrained({folder})\n\
         tokenizer.save_pretrained({folder})\n"
    )
}

fn arguments(draft: &mut Draft<'_>) -> Vec<Word> {
    let recipe = draft.recipe();
    let mut arguments: Vec<Word> = Vec::new();
    arguments.extend(draft.word("sequence_length"));
    arguments.extend(draft.word("packing"));
    if recipe.batch.packing {
        draft.warn(
            "batch.packing",
            "needs the flash-attn package, or documents attend to each other",
        );
    }
    arguments.extend(draft.word("micro_batch"));
    arguments.push(("per_device_eval_batch_size", json!(recipe.batch.micro_batch)));
    arguments.extend(draft.word("gradient_accumulation"));
    // A map of numbers and strings is Python's too.
    let literal = |(name, value): Word| match value {
        Value::Object(_) => (name, expression(&value.to_string())),
        value => (name, value),
    };
    arguments.extend(draft.course_words(WORDS).into_iter().map(literal));
    arguments.extend(draft.optimizer_words());
    let computing = recipe.precision.compute();
    let computing = draft.words(|keys| (keys.precision)(computing)).unwrap_or_default();
    let is_half = |(key, _): &Word| ["bf16", "fp16"].contains(key);
    arguments.extend(computing.into_iter().filter(is_half));
    arguments.extend(draft.reading_words("dataset_num_proc"));
    arguments.extend(draft.sampling_words());
    arguments.extend(draft.evaluation_words());
    if draft.input.data_format() == DataFormat::PromptCompletion {
        let only_completions = recipe.data.loss_on == LossOn::Completions;
        arguments.push(("completion_only_loss", json!(only_completions)));
    } else if draft.input.data_format() != DataFormat::Tokenized {
        arguments.push(("dataset_text_field", json!("text")));
    }
    draft.said(&["training.seed"]);
    arguments.push(("seed", json!(recipe.training.seed)));
    arguments.push(("logging_steps", json!(1)));
    arguments.push(("report_to", json!("none")));
    arguments.push(("output_dir", json!(draft.input.output_folder())));
    arguments
}

/// Masks the questions of chats, which unsloth finds by the marks around them.
fn mask(draft: &mut Draft<'_>, data: &DataSettings) -> String {
    let input = draft.input;
    let is_chat = !matches!(
        input.data_format(),
        DataFormat::Text | DataFormat::PromptCompletion | DataFormat::Tokenized
    );
    if data.loss_on == LossOn::All || !is_chat {
        return String::new();
    }
    let marks = match (input.known.architecture, &data.chat_template) {
        (Some(architecture), None) => architecture.family.row().chat,
        _ => {
            draft.warn(
                "data.loss_on",
                "the marks of this chat template are not known, so every token counts; add train_on_responses_only",
            );
            return String::new();
        }
    };
    draft.warn(
        "data.loss_on",
        "answers are found by the usual marks of the family; check them against the model's chat template",
    );
    let arguments = [
        ("trainer", expression("trainer")),
        ("instruction_part", json!(marks.user)),
        ("response_part", json!(marks.assistant)),
    ];
    format!(
        "from unsloth.chat_templates import train_on_responses_only\n\n{}",
        call("trainer = train_on_responses_only", &arguments)
    )
}
