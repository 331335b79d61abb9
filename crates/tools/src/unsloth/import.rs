//! A script for unsloth, with the defaults of its functions (2026.10). How rows become texts is code, of which the columns are known
//! that it reads.

use super::memory;
use crate::Tool;
use crate::import::trainer::{self, TrainerKeys};
use crate::import::{Keys, Reader, Script, StackFileError, adapter, precision, preference};
use crate::known_keys::is_off;
use peft_tune_core::recipe::{
    AdapterSettings, Checkpointing, LossOn, OptimizerKind, ScheduleKind, TargetModules, TrainingLength,
};

/// Tokens that its loader lets rows have where nothing is said.
const USUAL_LENGTH: usize = 2048;

/// Modules that its function adds adapters to where nothing is said.
const USUAL_MODULES: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// Keys of weights in more than 4 bits, with which 4 are not the usual.
const OTHER_WEIGHTS: [&str; 3] = ["load_in_8bit", "load_in_16bit", "full_finetuning"];

const PRECISION: precision::PrecisionKeys = precision::PrecisionKeys {
    is_4_bits: |keys| {
        let others = OTHER_WEIGHTS.iter().map(|key| is_on(keys, key));
        let has_other = others.collect::<Result<Vec<bool>, _>>()?.contains(&true);
        // True or a form of FP8, which is told as a key that no recipe has.
        let is_fp8 = keys.seen("load_in_fp8").is_some_and(|value| !is_off(value));
        Ok(!has_other && !is_fp8 && keys.flag("load_in_4bit")?.is_none())
    },
    // It turns quantization off then.
    is_whole: |keys| is_on(keys, "full_finetuning"),
    ..precision::PrecisionKeys::NONE
};

fn is_on(keys: &Keys<'_>, key: &str) -> Result<bool, StackFileError> {
    Ok(keys.flag(key)?.unwrap_or(false))
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let (keys, script, trainer) = (reader.keys, reader.script, reader.recipe.trainer);
    let recipe = &mut reader.recipe;
    for key in ["model_name", "model_name_or_path"] {
        if let Some(model) = keys.text(key)?.filter(|_| recipe.model.is_empty()) {
            recipe.model = model;
        }
    }
    recipe.adapter = match is_on(keys, "full_finetuning")? {
        true => None,
        false => Some(usual_adapter()),
    };
    recipe.gradient_checkpointing = Checkpointing::Offload;
    usual_of_trainer(reader, script);
    preference::read(reader, trainer)?;
    if script.is_some() {
        reader.said("method");
    }
    precision::read(reader, &PRECISION)?;
    reader.values(&[Tool::Unsloth])?;
    length(reader, script)?;
    adapter::read(reader, &adapter::OF_PEFT)?;
    trainer::read(reader, &usual_keys(script))?;
    let form = keys.text("use_gradient_checkpointing")?;
    // The trainer's argument goes before that of the adapter's function.
    let is_on = keys.flag("gradient_checkpointing")?;
    reader.recomputes(
        is_on.or(form.as_ref().map(|form| form != "false")),
        keys.flag("activation_offloading")?
            .or(form.map(|form| form == "unsloth")),
    );
    memory::read(reader)?;
    reader.rows_of_script();
    if keys.flag("completion_only_loss")?.unwrap_or(false) && reader.recipe.trainer.is_sft() {
        reader.recipe.data.loss_on = LossOn::Completions;
    }
    // Arguments of the mask, of what is trained and of what is read with the rows.
    for key in [
        "instruction_part",
        "response_part",
        "dataset_text_field",
        "max_seq_length",
        "load_in_16bit",
    ] {
        let _ = keys.has(key);
    }
    Ok(())
}

/// The adapter that `get_peft_model` adds where nothing is said.
fn usual_adapter() -> AdapterSettings {
    let mut usual = adapter::default(16, 16.0, 0.0);
    usual.target_modules = TargetModules::Named(USUAL_MODULES.map(str::to_owned).to_vec());
    usual
}

/// What trainers take where nothing is said: unsloth changes the defaults of TRL's settings, and not those of transformers.
fn usual_of_trainer(reader: &mut Reader<'_>, script: Option<&Script>) {
    let recipe = &mut reader.recipe;
    recipe.optimizer.learning_rate = 5e-5;
    recipe.schedule.kind = ScheduleKind::Linear;
    recipe.training.length = TrainingLength::Epochs(3.0);
    recipe.batch.micro_batch = 8;
    if has_own_usual(script) {
        recipe.batch.micro_batch = 4;
        recipe.batch.gradient_accumulation = 2;
        recipe.optimizer.kind = OptimizerKind::AdamW8bit;
        recipe.optimizer.weight_decay = 0.001;
        recipe.schedule.warmup = 0.1;
    }
}

fn has_own_usual(script: Option<&Script>) -> bool {
    script.is_some_and(|script| !script.has_usual_of_transformers)
}

fn usual_keys(script: Option<&Script>) -> TrainerKeys {
    match has_own_usual(script) {
        true => TrainerKeys {
            usual_optimizer: "adamw_8bit",
            usual_seed: 3407,
            ..TrainerKeys::OF_TRANSFORMERS
        },
        false => TrainerKeys::OF_TRANSFORMERS,
    }
}

/// The most tokens of a row: what the trainer is told, up to what the loader is told.
fn length(reader: &mut Reader<'_>, script: Option<&Script>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let Some(script) = script.filter(|script| script.trainer.is_sft() && !script.of_model.is_empty()) else {
        return match keys.has("max_length") {
            true => Ok(()),
            false => reader.value("sequence_length", "max_seq_length", keys),
        };
    };
    let of_loader = script
        .of_model
        .get("max_seq_length")
        .and_then(serde_json::Value::as_u64);
    let most = of_loader.map_or(USUAL_LENGTH, |length| length as usize);
    let of_trainer = reader.recipe.batch.sequence_length;
    reader.recipe.batch.sequence_length = most;
    reader.value("sequence_length", "max_seq_length", keys)?;
    let taken = reader.recipe.batch.sequence_length.min(most);
    reader.recipe.batch.sequence_length = taken;
    reader.said("sequence_length");
    if keys.has("max_length") && of_trainer != taken {
        let told = format!(
            "`max_length` is {of_trainer}, and unsloth cuts rows at the model's `max_seq_length`: {taken} is taken"
        );
        reader.note(told.clone());
        reader.assume(told);
    }
    Ok(())
}
