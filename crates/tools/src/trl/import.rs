//! TRL's YAML, its command line, and a script with `SFTConfig` and `LoraConfig`.

use std::path::PathBuf;

use super::dataset_card::{self, SplitFiles};
use super::{memory, mixture, peft_example};
use crate::Tool;
use crate::import::data::{files, hub_set, is_file, located, rename};
use crate::import::trainer::{self, TrainerKeys};
use crate::import::{Library, Reader, Script, StackFileError, adapter, precision, preference};
use peft_tune_core::predict::stack::Number;
use peft_tune_core::recipe::{
    Checkpointing, DataFormat, HeldOut, LossOn, Precision, ScheduleKind, TrainingData, TrainingLength,
};

/// Keys of a YAML or a command line; a script has PEFT's.
const OF_TRL: adapter::AdapterKeys = adapter::AdapterKeys {
    targets: "lora_target_modules",
    modules_to_save: "lora_modules_to_save",
    target_parameters: "lora_target_parameters",
    layers: "layers_to_transform",
    rank_pattern: "rank_pattern",
    alpha_pattern: "alpha_pattern",
    init: "init_lora_weights",
};

const PRECISION: precision::PrecisionKeys = precision::PrecisionKeys {
    is_double: |keys| {
        let said = keys
            .flag("use_bnb_nested_quant")?
            .or(keys.flag(peft_example::IS_DOUBLE)?);
        Ok(said.or(keys.flag("bnb_4bit_use_double_quant")?).unwrap_or(false))
    },
    ..precision::PrecisionKeys::NONE
};

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let (keys, script, trainer) = (reader.keys, reader.script, reader.recipe.trainer);
    defaults(reader);
    peft_example::defaults(reader);
    preference::read(reader, trainer)?;
    for key in ["model_name_or_path", "model_name", "model_id", "model"] {
        if reader.recipe.model.is_empty()
            && let Some(model) = keys.text(key)?
        {
            reader.recipe.model = model;
        }
    }
    let uses_peft = keys.flag("use_peft")?.or(keys.flag(peft_example::USES_LORA)?);
    let has_adapter = match script {
        Some(script) => {
            usual_of_script(reader, script);
            script.has_adapter
        }
        None => uses_peft.unwrap_or(keys.has("lora_r")),
    };
    if script.is_some() || uses_peft.is_some() {
        reader.said("method");
    }
    if !has_adapter {
        reader.recipe.adapter = None;
    } else if script.is_none() && uses_peft.is_none() {
        let told = "no `use_peft`: TRL trains all parameters then; here the adapter of `lora_r` is taken";
        reader.note(told);
        reader.assume(told);
    }
    precision::read(reader, &PRECISION)?;
    if !keys.has("dtype") && !keys.has("torch_dtype") && !reader.recipe.precision.is_quantized() {
        weights_unsaid(reader, script);
    }
    if script.is_some() && reader.recipe.precision.row().bits == 4 && !keys.has("bnb_4bit_quant_type") {
        reader.note("no `bnb_4bit_quant_type`: transformers takes fp4, and here it is nf4");
    }
    reader.values(&[Tool::Trl, Tool::Peft])?;
    if !keys.has("use_liger_kernel") {
        reader.value("use_liger_kernel", "use_liger", keys)?;
    }
    adapter::read(reader, if script.is_some() { &adapter::OF_PEFT } else { &OF_TRL })?;
    if !keys.has("max_length") {
        reader.value("sequence_length", "max_seq_length", keys)?;
        if !reader.has_said("sequence_length") {
            // Earlier versions of PEFT's example call it so.
            reader.value("sequence_length", "max_seq_len", keys)?;
        }
        // Nothing is cut where it is said to be nothing.
        reader.is_uncut = keys.is_null("max_length") && !reader.has_said("sequence_length");
    }
    trainer::read(reader, &TrainerKeys::OF_TRANSFORMERS)?;
    let is_on_in_model = script.is_some_and(|script| recomputes(script, reader.recipe.precision));
    if is_on_in_model {
        reader.recipe.gradient_checkpointing = Checkpointing::Full;
        reader.said("gradient_checkpointing");
    }
    reader.recomputes(
        // The trainer turns off nothing that is on in the model.
        keys.flag("gradient_checkpointing")?
            .filter(|is_on| *is_on || !is_on_in_model),
        keys.flag("activation_offloading")?,
    );
    memory::read(reader)?;
    peft_example::read(reader)?;
    match script {
        Some(_) => rows_of_script(reader),
        None => {
            data(reader)?;
            targets(reader)?;
            held_out(reader)
        }
    }
}

/// Tells in which dtype weights are loaded that have none in the file.
fn weights_unsaid(reader: &mut Reader<'_>, script: Option<&Script>) {
    if script.is_some_and(|script| script.loads_as_stored) {
        // As transformers 5 does.
        if let Some(dtypes) = &mut reader.choices.dtypes {
            dtypes.loads = Number::Half;
            dtypes.computes = Number::Half;
        }
        return;
    }
    reader.note("no `dtype`: TRL loads the weights in F32; here they are in the precision of the products");
    if reader.behaviour().loads == Number::F32 {
        reader.assume("no `dtype`: TRL loads the weights in F32, which takes twice the memory; write bfloat16");
    }
}

/// Whether a script tells its model to recompute layers. PEFT's function does so for quantized weights alone.
fn recomputes(script: &Script, precision: Precision) -> bool {
    script.recomputes || script.recomputes_quantized && precision.is_quantized()
}

/// What a script's trainer takes where nothing is said, as far as that is not what a file's is.
fn usual_of_script(reader: &mut Reader<'_>, script: &Script) {
    let recipe = &mut reader.recipe;
    recipe.adapter = Some(adapter::default(8, 8.0, 0.0));
    if script.has_usual_of_transformers {
        recipe.optimizer.learning_rate = 5e-5;
        recipe.gradient_checkpointing = Checkpointing::None;
    }
}

/// Takes the rows of a script, and which tokens of them count.
fn rows_of_script(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    reader.rows_of_script();
    template_file(reader)?;
    let keys = reader.keys;
    let is_plain = reader
        .script
        .is_some_and(|script| script.library == Library::Transformers);
    if is_plain && !reader.has_said("sequence_length") {
        let told = "the script's own code says how long rows are: 1024 tokens are taken; write `sequence_length` under `trial`";
        reader.note(told);
        reader.assume(told);
    }
    if reader.recipe.trainer.is_sft() {
        let is_masked = reader.recipe.data.loss_on == LossOn::Completions;
        targets(reader)?;
        if is_masked {
            reader.recipe.data.loss_on = LossOn::Completions;
        }
    }
    // Its columns were read with the rows.
    let _ = keys.has("dataset_text_field");
    Ok(())
}

/// What TRL (1.16) takes where nothing is said.
fn defaults(reader: &mut Reader<'_>) {
    let recipe = &mut reader.recipe;
    recipe.adapter = Some(adapter::default(16, 32.0, 0.05));
    recipe.batch.micro_batch = 8;
    recipe.batch.sequence_length = 1024;
    recipe.gradient_checkpointing = Checkpointing::Full;
    recipe.optimizer.learning_rate = if recipe.trainer.is_sft() { 2e-5 } else { 1e-6 };
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
            reader.recipe.data.held_out = files.held_out.into();
        } else if let Some(on_hub) = hub_set(&name, configuration.clone(), Some(&training)) {
            train.push(on_hub);
            let evaluates = keys.text("eval_strategy")?.is_some_and(|strategy| strategy != "no");
            let evaluated = hub_set(&name, configuration, Some(&evaluation)).filter(|_| evaluates);
            reader.recipe.data.held_out = Vec::from_iter(evaluated).into();
        } else {
            reader.not_a_file("dataset_name", &name);
        }
    }
    reader.recipe.data.train = train.into();
    template(reader)
}

fn template(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    template_file(reader)?;
    let field = reader.keys.text("dataset_text_field")?;
    rename(&mut reader.recipe.data, "text", field);
    Ok(())
}

/// The chat template of a file that is named.
fn template_file(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    if let Some(path) = keys.text("chat_template_path")? {
        let file = located(keys.path(), &path);
        let is_jinja = file.extension().is_some_and(|end| end == "jinja");
        match is_jinja || file.is_file() {
            true => reader.recipe.data.chat_template = Some(file),
            // A model whose tokenizer has the template.
            false => reader.unknown_word("chat_template_path", &path, "the tokenizer's own template"),
        }
    }
    Ok(())
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
