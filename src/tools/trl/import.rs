//! TRL's YAML, its command line, and a script with `SFTConfig` and `LoraConfig`.

use std::path::PathBuf;

use super::dataset_card::{self, SplitFiles};
use super::{memory, mixture};
use crate::tools::Tool;
use crate::tools::import::data::{files, hub_set, is_file, located, rename};
use crate::tools::import::trainer::{self, TrainerKeys};
use crate::tools::import::{Keys, Reader, StackFileError, adapter, is_script, precision};
use peft_tune_core::predict::stack::Number;
use peft_tune_core::recipe::{Checkpointing, DataFormat, HeldOut, LossOn, ScheduleKind, TrainingData, TrainingLength};

/// Keys of a YAML or a command line; a script has PEFT's.
const OF_TRL: adapter::AdapterKeys = adapter::AdapterKeys {
    targets: "lora_target_modules",
    modules_to_save: "lora_modules_to_save",
    target_parameters: "lora_target_parameters",
    layers: "layers_to_transform",
    rank_pattern: "rank_pattern",
    alpha_pattern: "alpha_pattern",
};

const PRECISION: precision::PrecisionKeys = precision::PrecisionKeys {
    is_double: |keys| {
        let said = keys.flag("use_bnb_nested_quant")?;
        Ok(said.or(keys.flag("bnb_4bit_use_double_quant")?).unwrap_or(false))
    },
    ..precision::PrecisionKeys::NONE
};

/// Keys of TRL's trainers that compare answers, or their rewards.
const OF_PREFERENCES: [&str; 3] = ["beta", "precompute_ref_log_probs", "desirable_weight"];

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    defaults(reader);
    if OF_PREFERENCES.iter().any(|key| keys.has(key)) {
        reader.note("a file of one of TRL's trainers of preferences: here it is read as supervised fine-tuning; say which in `trainer`");
    }
    for key in ["model_name_or_path", "model_name", "model_id", "model"] {
        if reader.recipe.model.is_empty()
            && let Some(model) = keys.text(key)?
        {
            reader.recipe.model = model;
        }
    }
    let is_script = is_script(keys.path());
    // With PEFT's `LoraConfig`, and not with TRL's own arguments.
    let has_lora_config = is_script && keys.has("r") && !keys.has("lora_r");
    let has_adapter = keys.flag("use_peft")?.unwrap_or(keys.has("lora_r") || has_lora_config);
    if has_lora_config {
        reader.recipe.adapter = Some(adapter::default(8, 8.0, 0.0));
    }
    if keys.has("use_peft") {
        reader.said("method");
    }
    if !has_adapter {
        reader.recipe.adapter = None;
    }
    precision::read(reader, &PRECISION)?;
    if !keys.has("dtype") && !keys.has("torch_dtype") && !reader.recipe.precision.is_quantized() {
        weights_unsaid(reader, is_script);
    }
    reader.values(&[Tool::Trl, Tool::Peft])?;
    if !keys.has("use_liger_kernel") {
        reader.value("use_liger_kernel", "use_liger", keys)?;
    }
    adapter::read(reader, if has_lora_config { &adapter::OF_PEFT } else { &OF_TRL })?;
    if !keys.has("max_length") {
        reader.value("sequence_length", "max_seq_length", keys)?;
        // Nothing is cut where it is said to be nothing.
        reader.is_uncut = keys.is_null("max_length") && !reader.has_said("sequence_length");
    }
    trainer::read(reader, &TrainerKeys::OF_TRANSFORMERS)?;
    reader.recomputes(
        keys.flag("gradient_checkpointing")?,
        keys.flag("activation_offloading")?,
    );
    memory::read(reader)?;
    data(reader)?;
    targets(reader)?;
    held_out(reader)
}

/// Tells in which dtype weights are loaded that have none in the file.
fn weights_unsaid(reader: &mut Reader<'_>, is_script: bool) {
    if !is_script {
        reader.note("no `dtype`: trl loads the weights in F32; here they are in the precision of the products");
    }
    if reader.behaviour().loads == Number::F32 {
        reader.assume("no `dtype`: trl sft loads the weights in F32, which takes twice the memory; write bfloat16");
    }
}

/// What TRL (1.16) takes where nothing is said.
fn defaults(reader: &mut Reader<'_>) {
    let recipe = &mut reader.recipe;
    recipe.adapter = Some(adapter::default(16, 32.0, 0.05));
    recipe.batch.micro_batch = 8;
    recipe.batch.sequence_length = 1024;
    recipe.gradient_checkpointing = Checkpointing::Full;
    recipe.optimizer.learning_rate = 2e-5;
    recipe.schedule.kind = ScheduleKind::Linear;
    recipe.training.length = TrainingLength::Epochs(3.0);
}

fn data(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let mut train: Vec<PathBuf> = files(keys, "data_files");
    reader.splits("split", &[keys.text("split")?]);
    match mixture::read(reader)? {
        TrainingData::Files(files) => train.extend(files),
        mixture => {
            reader.recipe.data.train = mixture;
            return template(reader);
        }
    }
    if let Some(name) = keys.text("dataset_name")? {
        let split = |key: &str, usual: &str| -> Result<String, StackFileError> {
            Ok(keys.text(key)?.unwrap_or_else(|| usual.to_owned()))
        };
        let [training, evaluation] = [
            split("dataset_train_split", dataset_card::TRAIN)?,
            split("dataset_test_split", dataset_card::HELD_OUT)?,
        ];
        let configuration = keys.text("dataset_config")?;
        let folder = located(keys.path(), &name);
        if is_file(keys.path(), &name) {
            train.push(folder);
        } else if let Some(files) = SplitFiles::of_folder(&folder, [&training, &evaluation]) {
            train.extend(files.train);
            reader.recipe.data.held_out = held_out_of(files.held_out);
        } else if let Some(on_hub) = hub_set(&name, configuration.clone(), Some(&training)) {
            train.push(on_hub);
            let evaluates = keys.text("eval_strategy")?.is_some_and(|strategy| strategy != "no");
            let evaluated = hub_set(&name, configuration, Some(&evaluation)).filter(|_| evaluates);
            reader.recipe.data.held_out = held_out_of(evaluated.into_iter().collect());
        } else {
            reader.not_a_file("dataset_name", &name);
        }
    }
    reader.recipe.data.train = match reader.mixed_in_script() {
        Some(mixture) if is_script(keys.path()) => mixture,
        _ => train.into(),
    };
    template(reader)
}

fn template(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let template = keys.text("chat_template_path")?;
    reader.recipe.data.chat_template = template.map(|path| located(keys.path(), &path));
    let field = keys.text("dataset_text_field")?;
    rename(&mut reader.recipe.data, "text", field);
    Ok(())
}

/// Held-out rows in files; nothing is said of them where there is none.
fn held_out_of(mut files: Vec<PathBuf>) -> HeldOut {
    match files.len() {
        1 => HeldOut::File(files.remove(0)),
        _ => HeldOut::Files(files),
    }
}

/// Which tokens count, and what that says of the rows.
fn targets(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let of_answers = keys.flag("assistant_only_loss")?.unwrap_or(false);
    let of_completions = keys.flag("completion_only_loss")?;
    let data = &mut reader.recipe.data;
    // TRL trains on whole chats and texts unless it is told not to.
    data.loss_on = LossOn::All;
    if of_answers {
        (data.format, data.loss_on) = (DataFormat::Messages, LossOn::Completions);
    } else if let Some(only) = of_completions {
        data.format = DataFormat::PromptCompletion;
        data.loss_on = if only { LossOn::Completions } else { LossOn::All };
    }
    Ok(())
}

fn held_out(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    for key in ["test_split_size", "test_size"].into_iter().filter(|key| keys.has(key)) {
        if let Some(share) = reader.held_out_share(keys, key)? {
            reader.recipe.data.held_out = HeldOut::Fraction(share);
        }
    }
    Ok(())
}
