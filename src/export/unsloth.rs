//! `unsloth_train.py`: a script for unsloth (2026.10), which has no configuration file.
//!
//! Every argument is one that unsloth's and TRL's functions have. What unsloth itself cannot say is written as the few
//! lines of Python that a user would add: rows of other formats become messages, prompts are masked by the markers of
//! the family's chat template.

use serde_json::{Value, json};

use super::course::Warmup;
use super::draft::{AdapterWords, Draft, builder_of, column, quantized_bits};
use super::hf_trainer::{constants, optimizer_name, schedule_name};
use super::modules::module_names;
use super::write::Rendered;
use super::{ExportError, ExportFormat, ExportInput};
use peft_tune_core::architecture::Family;
use peft_tune_core::recipe::{
    AdapterInit, AdapterSettings, Checkpointing, DataFormat, DataSettings, HeldOut, LossOn, Precision, Recipe,
    TrainingLength,
};

const FORMAT: ExportFormat = ExportFormat::Unsloth;

pub(super) fn render(input: &ExportInput<'_>) -> Result<Rendered, ExportError> {
    let Some(adapter) = &input.recipe.adapter else {
        return Err(ExportError::NoAdapter { format: FORMAT });
    };
    let mut draft = Draft::default();
    let script = [
        "import unsloth  # before transformers and trl, which it changes\n\
         import torch\n\
         from datasets import load_dataset\n\
         from trl import SFTConfig, SFTTrainer\n\
         from unsloth import FastLanguageModel\n"
            .to_owned(),
        model(input.recipe),
        lora(&mut draft, input, adapter),
        data(&mut draft, input)?,
        trainer(&mut draft, input),
    ];
    let usage = format!("python {}", FORMAT.file_name());
    let text = input.header(&usage, &draft.warnings) + &script.join("\n");
    Ok(Rendered::new(FORMAT, text, draft.warnings))
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
fn call(function: &str, arguments: &[(&str, Value)]) -> String {
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

fn model(recipe: &Recipe) -> String {
    let bits = quantized_bits(recipe.precision);
    let dtype = match recipe.precision {
        Precision::Fp32 => "torch.float32",
        Precision::Fp16 => "torch.float16",
        _ => "torch.bfloat16",
    };
    let arguments = [
        ("model_name", json!(recipe.model)),
        ("max_seq_length", json!(recipe.batch.sequence_length)),
        ("dtype", expression(dtype)),
        ("load_in_4bit", json!(bits == Some(4))),
        ("load_in_8bit", json!(bits == Some(8))),
    ];
    call("model, tokenizer = FastLanguageModel.from_pretrained", &arguments)
}

fn lora(draft: &mut Draft, input: &ExportInput<'_>, adapter: &AdapterSettings) -> String {
    let recipe = input.recipe;
    if recipe.precision == Precision::Nf4 {
        draft.warn(
            "precision",
            "unsloth always quantizes the constants of NF4 too: a little less memory",
        );
    }
    let words = AdapterWords {
        init: &[AdapterInit::Gaussian, AdapterInit::Pissa],
        layers: true,
        modules_to_save: true,
        ..AdapterWords::default()
    };
    draft.unsayable(
        adapter,
        words,
        "unsloth's fast path has no such setting; leave it out, or use --format trl",
    );
    if adapter.dropout > 0.0 {
        draft.warn(
            "adapter.dropout",
            "unsloth's fast kernels need dropout 0; expect less throughput",
        );
    }
    let mut arguments = vec![
        ("r", json!(adapter.rank)),
        ("lora_alpha", super::peft::whole_if_possible(adapter.alpha)),
        ("lora_dropout", json!(adapter.dropout)),
        ("bias", json!("none")),
        (
            "target_modules",
            json!(module_names(&adapter.target_modules, input.known.architecture)),
        ),
        ("use_rslora", json!(adapter.rslora)),
        (
            "init_lora_weights",
            match adapter.init {
                AdapterInit::Kaiming => json!(true),
                AdapterInit::Gaussian => json!("gaussian"),
                AdapterInit::Pissa => json!("pissa"),
            },
        ),
        (
            "use_gradient_checkpointing",
            match recipe.gradient_checkpointing {
                Checkpointing::None => json!(false),
                Checkpointing::Full | Checkpointing::Every(_) => json!(true),
                Checkpointing::Offload => json!("unsloth"),
            },
        ),
        ("random_state", json!(recipe.training.seed)),
    ];
    if matches!(recipe.gradient_checkpointing, Checkpointing::Every(_)) {
        draft.warn(
            "gradient_checkpointing",
            "unsloth recomputes every layer: slower, and less memory",
        );
    }
    if adapter.dora {
        arguments.push(("use_dora", json!(true)));
    }
    if let Some(layers) = &adapter.layers_to_transform {
        arguments.push(("layers_to_transform", json!(layers)));
    }
    if !adapter.modules_to_save.is_empty() {
        arguments.push(("modules_to_save", json!(adapter.modules_to_save)));
    }
    arguments.insert(0, ("model", expression("model")));
    call("model = FastLanguageModel.get_peft_model", &arguments)
}

fn data(draft: &mut Draft, input: &ExportInput<'_>) -> Result<String, ExportError> {
    let data = &input.recipe.data;
    let mut text = load("train_dataset", &data.train, data.max_rows);
    match &data.held_out {
        HeldOut::Fraction(fraction) => {
            text.push_str(&format!(
                "parts = train_dataset.train_test_split(test_size={fraction}, seed={})\n\
                 train_dataset, eval_dataset = parts[\"train\"], parts[\"test\"]\n",
                input.recipe.training.seed
            ));
            draft.warn(
                "data.held_out",
                "the script holds out other rows than were measured; its loss differs a little",
            );
        }
        HeldOut::File(path) => text.push_str(&load("eval_dataset", std::slice::from_ref(path), None)),
        HeldOut::Files(paths) => text.push_str(&load("eval_dataset", paths, None)),
    }
    text.push_str(&to_rows(draft, input)?);
    Ok(text)
}

fn load(name: &str, files: &[std::path::PathBuf], rows: Option<usize>) -> String {
    let builder = files.first().map_or("json", |path| builder_of(path));
    let files: Vec<_> = files.iter().map(|path| json!(path.to_string_lossy())).collect();
    let split = rows.map_or("train".to_owned(), |rows| format!("train[:{rows}]"));
    format!(
        "{name} = load_dataset({}, data_files={}, split={})\n",
        python(&json!(builder)),
        python(&Value::Array(files)),
        python(&json!(split))
    )
}

/// Turns rows into what TRL's trainer takes: `text`, or `prompt` and `completion`.
fn to_rows(draft: &mut Draft, input: &ExportInput<'_>) -> Result<String, ExportError> {
    let data = &input.recipe.data;
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
        DataFormat::Alpaca | DataFormat::Auto => format!(
            "    question = \"\\n\".join(filter(None, [row[{}], row.get({})]))\n    \
             turns = [{{\"role\": \"user\", \"content\": question}}, {{\"role\": \"assistant\", \"content\": row[{}]}}]\n    \
             return {{\"text\": tokenizer.apply_chat_template(turns, tokenize=False)}}\n",
            name("instruction"),
            name("input"),
            name("output")
        ),
        DataFormat::Tokenized => {
            return Err(ExportError::Refused {
                format: FORMAT,
                field: "data.format",
                reason: "it reads no token ids; give it the text that they were made from",
            });
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

fn trainer(draft: &mut Draft, input: &ExportInput<'_>) -> String {
    let recipe = input.recipe;
    let config = call("config = SFTConfig", &arguments(draft, input));
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
    let masked = mask(draft, input, &recipe.data);
    let folder = python(&json!(format!("{}/adapter", input.output_folder())));
    format!(
        "{config}{trainer}{masked}trainer.train()\n\
         print(trainer.evaluate())\n\
         model.save_pretrained({folder})\n\
         tokenizer.save_pretrained({folder})\n"
    )
}

fn arguments(draft: &mut Draft, input: &ExportInput<'_>) -> Vec<(&'static str, Value)> {
    let recipe = input.recipe;
    let course = input.course();
    let mut arguments = vec![
        ("max_length", json!(recipe.batch.sequence_length)),
        ("packing", json!(recipe.batch.packing)),
        ("per_device_train_batch_size", json!(recipe.batch.micro_batch)),
        ("per_device_eval_batch_size", json!(recipe.batch.micro_batch)),
        ("gradient_accumulation_steps", json!(recipe.batch.gradient_accumulation)),
    ];
    match recipe.training.length {
        TrainingLength::Epochs(epochs) => arguments.push(("num_train_epochs", json!(epochs))),
        TrainingLength::Steps(steps) => arguments.push(("max_steps", json!(steps))),
        TrainingLength::Tokens(_) => {}
    }
    if let Some((steps, message)) = course.of_tokens() {
        arguments.push(("max_steps", json!(steps)));
        draft.warn("training.length", message);
    }
    arguments.push(match course.warmup {
        Warmup::Steps(steps) => ("warmup_steps", json!(steps)),
        Warmup::Share(share) => ("warmup_steps", json!(share)),
    });
    let optimizer = &recipe.optimizer;
    let name = optimizer_name(optimizer.kind).unwrap_or_else(|| {
        draft.warn(
            "optimizer.kind",
            "TRL's arguments know no muon, so they say adamw; pass the optimizer in code",
        );
        "adamw_torch"
    });
    arguments.push(("lr_scheduler_type", json!(schedule_name(&recipe.schedule))));
    arguments.push(("optim", json!(name)));
    arguments.push(("learning_rate", json!(optimizer.learning_rate)));
    arguments.push(("weight_decay", json!(optimizer.weight_decay)));
    arguments.push(("max_grad_norm", json!(optimizer.max_grad_norm.unwrap_or(0.0))));
    arguments.extend(constants(optimizer));
    if optimizer.loraplus_ratio.is_some() {
        draft.warn(
            "optimizer.loraplus_ratio",
            "build the optimizer with peft.optimizers.create_loraplus_optimizer",
        );
    }
    arguments.push((
        "bf16",
        json!(!matches!(recipe.precision, Precision::Fp32 | Precision::Fp16)),
    ));
    arguments.push(("fp16", json!(recipe.precision == Precision::Fp16)));
    if recipe.batch.packing {
        draft.warn(
            "batch.packing",
            "needs the flash-attn package, or documents attend to each other",
        );
    }
    if !recipe.training.shuffle {
        arguments.push(("train_sampling_strategy", json!("sequential")));
    } else if recipe.batch.group_by_length {
        arguments.push(("train_sampling_strategy", json!("group_by_length")));
    }
    match recipe.training.evaluate_every {
        Some(steps) => arguments.extend([("eval_strategy", json!("steps")), ("eval_steps", json!(steps))]),
        None => arguments.push(("eval_strategy", json!("epoch"))),
    }
    if input.data_format() == DataFormat::PromptCompletion {
        arguments.push((
            "completion_only_loss",
            json!(recipe.data.loss_on == LossOn::Completions),
        ));
    } else {
        arguments.push(("dataset_text_field", json!("text")));
    }
    arguments.push(("seed", json!(recipe.training.seed)));
    arguments.push(("logging_steps", json!(1)));
    arguments.push(("report_to", json!("none")));
    arguments.push(("output_dir", json!(input.output_folder())));
    arguments
}

/// Masks the questions of chats, which unsloth finds by the marks around them.
fn mask(draft: &mut Draft, input: &ExportInput<'_>, data: &DataSettings) -> String {
    let is_chat = !matches!(
        input.data_format(),
        DataFormat::Text | DataFormat::PromptCompletion | DataFormat::Tokenized
    );
    if data.loss_on == LossOn::All || !is_chat {
        return String::new();
    }
    let family = input.known.architecture.map(|architecture| architecture.family);
    let marks = match (family, &data.chat_template) {
        (Some(Family::Qwen2 | Family::Qwen3), None) => ("<|im_start|>user\n", "<|im_start|>assistant\n"),
        (Some(Family::Gemma2 | Family::Gemma3), None) => ("<start_of_turn>user\n", "<start_of_turn>model\n"),
        (Some(Family::Phi3), None) => ("<|user|>\n", "<|assistant|>\n"),
        (Some(Family::Mistral), None) => ("[INST]", "[/INST]"),
        (Some(Family::Llama), None) => (
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
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
        ("instruction_part", json!(marks.0)),
        ("response_part", json!(marks.1)),
    ];
    format!(
        "from unsloth.chat_templates import train_on_responses_only\n\n{}",
        call("trainer = train_on_responses_only", &arguments)
    )
}
