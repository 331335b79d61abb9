//! A script for unsloth. Arguments of calls are read where they are written out; how rows become texts is code, of which the
//! columns are known that `export` writes and that unsloth's own notebooks have.

use std::path::PathBuf;

use serde_json::Value;

use super::memory;
use crate::tools::Tool;
use crate::tools::import::data::{files, located};
use crate::tools::import::trainer::{self, TrainerKeys};
use crate::tools::import::{Keys, Reader, StackFileError, adapter, precision, script};
use peft_tune_core::recipe::{Checkpointing, DataFormat, HeldOut, LossOn, ScheduleKind, TrainingLength};

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let recipe = &mut reader.recipe;
    recipe.model = keys.text("model_name")?.unwrap_or_default();
    recipe.adapter = match keys.flag("full_finetuning")?.unwrap_or(false) {
        true => None,
        false => Some(adapter::default(16, 16.0, 0.0)),
    };
    recipe.batch.micro_batch = 8;
    recipe.gradient_checkpointing = Checkpointing::Offload;
    recipe.optimizer.learning_rate = 5e-5;
    recipe.schedule.kind = ScheduleKind::Linear;
    recipe.training.length = TrainingLength::Epochs(3.0);
    if keys.has("full_finetuning") {
        reader.said("method");
    }
    precision::read(reader, &precision::PrecisionKeys::NONE)?;
    reader.values(&[Tool::Unsloth])?;
    if !keys.has("max_length") {
        reader.value("sequence_length", "max_seq_length", keys)?;
    }
    adapter::read(reader, &adapter::OF_PEFT)?;
    trainer::read(reader, &TrainerKeys::OF_TRANSFORMERS)?;
    let form = keys.text("use_gradient_checkpointing")?;
    // The trainer's argument goes before that of the adapter's function.
    let is_on = keys.flag("gradient_checkpointing")?;
    reader.recomputes(
        is_on.or(form.as_ref().map(|form| form != "false")),
        keys.flag("activation_offloading")?
            .or(form.map(|form| form == "unsloth")),
    );
    memory::read(reader)?;
    reader.recipe.data.train = match reader.mixed_in_script() {
        Some(mixture) => mixture,
        None => files(keys, "data_files").into(),
    };
    reader.splits("split", &[keys.text("split")?]);
    held_out(reader)?;
    rows(reader)
}

fn held_out(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let share = reader
        .keys
        .number("test_size")?
        .filter(|share| *share > 0.0 && *share < 1.0);
    let files = held_out_files(reader);
    reader.recipe.data.held_out = match (share, files.len()) {
        (Some(share), _) => HeldOut::Fraction(share),
        (None, 1) => HeldOut::File(files.into_iter().next().unwrap_or_default()),
        (None, _) => HeldOut::Files(files),
    };
    Ok(())
}

/// The files that `eval_dataset` is loaded from.
fn held_out_files(reader: &Reader<'_>) -> Vec<PathBuf> {
    let Some((_, call)) = reader.text.split_once("eval_dataset = load_dataset(") else {
        return Vec::new();
    };
    let call = call.lines().next().unwrap_or_default();
    let values = script::python(call);
    files(&Keys::new(reader.keys.path(), &values), "data_files")
}

/// What a row is, by the columns that the script reads.
fn rows(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let (keys, text) = (reader.keys, reader.text);
    let has = |column: &str| text.contains(&format!("row[\"{column}\"]"));
    let format = match () {
        () if text.contains("select_columns(") && text.contains("\"input_ids\"") => DataFormat::Tokenized,
        () if has("messages") => DataFormat::Messages,
        () if has("conversations") => DataFormat::Sharegpt,
        () if has("prompt") && has("completion") => DataFormat::PromptCompletion,
        () if has("instruction") && has("output") => DataFormat::Alpaca,
        () if has("text") => DataFormat::Text,
        () => DataFormat::Auto,
    };
    let of_completions = keys.flag("completion_only_loss")?;
    let is_masked = text.contains("train_on_responses_only(");
    let data = &mut reader.recipe.data;
    data.format = format;
    data.loss_on = match is_masked || of_completions == Some(true) {
        true => LossOn::Completions,
        false => LossOn::All,
    };
    let template = text.split_once("chat_template = open(").map(|(_, rest)| rest);
    let template = template.and_then(|rest| serde_json::Deserializer::from_str(rest).into_iter::<Value>().next());
    if let Some(Ok(Value::String(path))) = template {
        data.chat_template = Some(located(keys.path(), &path));
    }
    // Arguments of the mask and of what is trained, which are said above.
    for key in [
        "max_seq_length",
        "instruction_part",
        "response_part",
        "eval_dataset",
        "train_dataset",
        "chat_template",
        "stopping_strategy",
        "datasets",
    ] {
        let _ = keys.has(key);
    }
    Ok(())
}
