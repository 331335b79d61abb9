//! torchtune's config.

use std::path::PathBuf;

use serde_json::Value;

use super::builders::Builder;
use super::memory;
use crate::Tool;
use crate::import::data::{Split, hub_set, rename};
use crate::import::{Keys, Reader, StackFileError, adapter, preference, tables, trainer};
use peft_tune_core::predict::stack::{Dtypes, Number};
use peft_tune_core::recipe::{
    DataFormat, HeldOut, LossOn, OptimizerKind, OptimizerOffload, Precision, ScheduleKind, TargetModules,
    TrainingLength,
};

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    model(reader)?;
    reader.recipe.batch.micro_batch = 1;
    for (name, key) in [
        ("micro_batch", "batch_size"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
    ] {
        reader.value(name, key, keys)?;
    }
    compiler(reader)?;
    if let Some(tokenizer) = keys.part("tokenizer", "tokenizer.") {
        reader.value("sequence_length", "max_seq_len", &tokenizer)?;
        let _ = tokenizer.has("_component_");
        reader.part_unread(&tokenizer, "tokenizer.");
    }
    // Its tokenizers cut nothing then.
    reader.is_uncut = !reader.has_said("sequence_length");
    let folder = keys.part("checkpointer", "checkpointer.");
    let folder = folder.map(|part| part.text("checkpoint_dir")).transpose()?.flatten();
    reader.recipe.model = folder.unwrap_or_default();
    optimizer(reader)?;
    schedule(reader)?;
    reader.recomputes(
        keys.flag("enable_activation_checkpointing")?,
        keys.flag("enable_activation_offloading")?,
    );
    memory::read(reader)?;
    reader.recipe.optimizer.max_grad_norm = keys.bound("clip_grad_norm")?;
    length(reader)?;
    if let Some(seed) = trainer::seed(keys)? {
        reader.recipe.training.seed = seed;
    }
    reader.recipe.training.shuffle = keys.flag("shuffle")?.unwrap_or(true);
    // The loss of answers changes nothing here.
    if let Some(loss) = keys.part("loss", "loss.") {
        preference::factor(reader, &loss, &["beta"])?;
    }
    data(reader)
}

/// Whether the model is compiled: a flag, or one of those of its parts.
fn compiler(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let Some(parts) = keys.part("compile", "compile.") else {
        return reader.value("torch_compile", "compile", keys);
    };
    reader.recipe.torch.torch_compile = parts.flag("model")?.unwrap_or(true);
    reader.said("torch_compile");
    Ok(())
}

/// Adapter and precision, which are arguments of the model's builder.
fn model(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let Some(model) = keys.part("model", "model.") else {
        return Err(keys.wrong("model", &Value::Null, "write the model's `_component_`"));
    };
    let component = model.text("_component_")?.unwrap_or_default();
    let is_adapted = model.has("lora_rank") || component.contains("lora");
    reader.recipe.adapter = is_adapted.then(|| adapter::default(8, 16.0, 0.0));
    let is_quantized = model.flag("quantize_base")?.unwrap_or(component.contains("qlora"));
    let is_f32 = keys.text("dtype")?.is_some_and(|dtype| dtype.contains("32"));
    reader.recipe.precision = match (is_quantized, is_f32) {
        (true, _) => Precision::Nf4Double,
        (false, true) => Precision::Fp32,
        (false, false) => Precision::Bf16,
    };
    // One dtype for all that is not quantized.
    let number = if is_f32 { Number::F32 } else { Number::Half };
    reader.choices.dtypes = Some(Dtypes {
        loads: number,
        computes: number,
        autocast: false,
    });
    reader.said("precision");
    reader.said("method");
    if !is_adapted {
        return Ok(());
    }
    for (name, key) in [
        ("rank", "lora_rank"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("dora", "use_dora"),
    ] {
        reader.value(name, key, &model)?;
    }
    let mut targets = model.names("lora_attn_modules")?.unwrap_or_default();
    for name in &mut targets {
        if name == "output_proj" {
            *name = "o_proj".into();
        }
    }
    if model.flag("apply_lora_to_mlp")?.unwrap_or(false) {
        targets.extend(["gate_proj", "up_proj", "down_proj"].map(str::to_owned));
    }
    if model.flag("apply_lora_to_output")?.unwrap_or(false) {
        targets.push("lm_head".into());
    }
    if let Some(adapter) = reader.recipe.adapter.as_mut().filter(|_| !targets.is_empty()) {
        adapter.target_modules = TargetModules::Named(targets);
        reader.said("target_modules");
    }
    Ok(())
}

fn optimizer(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let Some(part) = reader.keys.part("optimizer", "optimizer.") else {
        return Ok(());
    };
    let class = part.text("_component_")?.unwrap_or_default();
    let rows = OptimizerKind::ALL.map(|kind| (kind, Tool::Torchtune.optimizer_words(kind)));
    match tables::row_of(&part, rows) {
        // torchao's, which makes torch's AdamW.
        _ if class.ends_with("CPUOffloadOptimizer") => {
            let optimizer = &mut reader.recipe.optimizer;
            (optimizer.kind, optimizer.offload) = (OptimizerKind::AdamW, OptimizerOffload::Host);
            reader.said("optimizer");
            reader.said("optimizer_offload");
        }
        Some(kind) => {
            reader.recipe.optimizer.kind = kind;
            reader.said("optimizer");
        }
        None => reader.optimizer("optimizer._component_", &class),
    }
    if reader.recipe.optimizer.kind == OptimizerKind::Sgd {
        // torch's has none unless it is asked for.
        reader.recipe.optimizer.momentum = 0.0;
    }
    reader.recipe.optimizer.weight_decay = usual_decay(&class);
    for (name, key) in [
        ("learning_rate", "lr"),
        ("weight_decay", "weight_decay"),
        ("epsilon", "eps"),
        ("momentum", "momentum"),
        ("nesterov", "nesterov"),
    ] {
        reader.value(name, key, &part)?;
    }
    if let Some(betas) = part.raw("betas") {
        let pair = betas
            .as_array()
            .map(|all| all.iter().filter_map(Value::as_f64).collect::<Vec<_>>());
        let is_share = |beta: &f64| (0.0..1.0).contains(beta);
        let Some([first, second]) = pair.as_deref().filter(|pair| pair.iter().all(is_share)) else {
            return Err(part.wrong("betas", betas, "write two numbers of 0 or more, and below 1"));
        };
        (reader.recipe.optimizer.beta1, reader.recipe.optimizer.beta2) = (*first, Some(*second));
        reader.said("beta1");
        reader.said("beta2");
    }
    reader.part_unread(&part, "optimizer.");
    Ok(())
}

/// The weight decay of an optimizer's class where the file says none: torch's, bitsandbytes' and torchao's AdamW have one, and
/// torchao's that updates on the host makes torch's.
fn usual_decay(class: &str) -> f64 {
    let name = class.rsplit('.').next().unwrap_or(class);
    match name {
        "Muon" => 0.1,
        "CPUOffloadOptimizer" => 0.01,
        name if name.contains("AdamW") && !name.ends_with("ScheduleFree") => 0.01,
        _ => 0.0,
    }
}

fn schedule(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    reader.recipe.schedule.kind = ScheduleKind::Constant;
    let Some(part) = reader.keys.part("lr_scheduler", "lr_scheduler.") else {
        return Ok(());
    };
    let name = part.text("_component_")?.unwrap_or_default();
    let found = tables::schedule(&part, Tool::Torchtune);
    reader.recipe.schedule.kind = ScheduleKind::Cosine;
    reader.schedule("lr_scheduler._component_", &name, found);
    if let Some(steps) = part.number("num_warmup_steps")? {
        reader.recipe.schedule.warmup = steps.max(0.0);
        reader.said("warmup");
    }
    trainer::schedule_values(reader, &part, "write a value that the schedule takes")?;
    reader.part_unread(&part, "lr_scheduler.");
    Ok(())
}

fn length(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let epochs = reader.keys.count("epochs")?.unwrap_or(1);
    let steps = reader.keys.count("max_steps_per_epoch")?;
    reader.recipe.training.length = match steps {
        Some(steps) => TrainingLength::Steps(epochs.saturating_mul(steps)),
        None => TrainingLength::Epochs(epochs as f64),
    };
    Ok(())
}

fn data(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let (mut train, mut splits, mut layouts): (Vec<PathBuf>, Vec<_>, Vec<_>) = (Vec::new(), Vec::new(), Vec::new());
    for set in keys.items("dataset", "dataset.") {
        let class = set.text("_component_")?.unwrap_or_default();
        let builder = Builder::of(&class);
        match builder {
            _ if !reader.recipe.trainer.is_sft() => pairs(reader, &set, builder)?,
            Some(builder) if builder.format != DataFormat::Preference => rows(reader, &set, builder)?,
            _ => reader.unknown_word("dataset._component_", &class, "what the columns of the first row tell"),
        }
        layouts.push(reader.layout_of_set());
        train.extend(source(reader, &set, builder)?);
        splits.push(set.text("split")?);
        reader.value("packing", "packed", &set)?;
        // One that repeats rows shuffles them itself.
        reader.recipe.training.shuffle |= set.flag("shuffle")?.unwrap_or(false);
        reader.part_unread(&set, "dataset.");
    }
    reader.take_layout("dataset._component_", layouts);
    reader.recipe.data.train = train.into();
    match splits.as_slice() {
        [Some(one)] => match Split::of(one) {
            // What is left of most of the rows is there to evaluate on.
            Some(Split::Percent(percent)) if percent >= 50.0 => {
                reader.recipe.data.held_out = HeldOut::Fraction((100.0 - percent) / 100.0);
            }
            _ => reader.splits("dataset.split", &splits),
        },
        _ => reader.splits("dataset.split", &splits),
    }
    Ok(())
}

/// Files of a data set, or the data set of the hub: the one that its function reads where the config names none.
fn source(reader: &mut Reader<'_>, set: &Keys<'_>, builder: Option<&Builder>) -> Result<Vec<PathBuf>, StackFileError> {
    let own = builder.and_then(|builder| Some((builder.source?, builder.configuration)));
    let (id, configuration) = match own {
        Some(own) if !set.has("source") && !set.has("data_files") => own,
        _ => return reader.files_of_set(set, "source", "dataset.source"),
    };
    if let Some(folder) = builder.and_then(|builder| builder.folder) {
        reader.data_note(format!(
            "rows of the folder `{folder}` of {id} alone are read there, and here all of its rows: name files of it with `--data`"
        ));
    }
    let named = set.text("name")?.or(set.text("subset")?);
    let configuration = named.or(configuration.map(str::to_owned));
    let splits = set.text("split")?.unwrap_or_default();
    let of_split = |split: &str| hub_set(id, configuration.clone(), split.split('[').next());
    Ok(splits.split('+').filter_map(of_split).collect())
}

/// Columns of a row of preferences: those of the map, which goes in the place of the function's own.
fn pairs(reader: &mut Reader<'_>, set: &Keys<'_>, builder: Option<&Builder>) -> Result<(), StackFileError> {
    let map = set.part("column_map", "column_map.");
    let usual = builder.map_or(&[][..], |builder| builder.columns);
    for name in ["prompt", "chosen", "rejected"] {
        let own = match &map {
            Some(map) => map.text(name)?,
            None => usual
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, own)| (*own).to_owned()),
        };
        rename(&mut reader.recipe.data, name, own);
    }
    Ok(())
}

/// What a row is, by the function of its data set.
fn rows(reader: &mut Reader<'_>, set: &Keys<'_>, builder: &Builder) -> Result<(), StackFileError> {
    let style = set.text("conversation_style")?;
    let columns = set.part("column_map", "column_map.");
    let mapped = |name: &str| columns.as_ref().map(|columns| columns.text(name)).transpose();
    let learns_inputs = set.flag("train_on_input")?.unwrap_or(builder.learns_inputs);
    let data = &mut reader.recipe.data;
    data.loss_on = match learns_inputs {
        true => LossOn::All,
        false => LossOn::Completions,
    };
    data.format = builder.format;
    for (name, own) in builder.columns {
        // The map has the names of the format's two sides.
        let side = if *name == "prompt" { "input" } else { "output" };
        rename(
            data,
            name,
            Some(mapped(side)?.flatten().unwrap_or_else(|| (*own).to_owned())),
        );
    }
    match builder.format {
        DataFormat::Messages if style.as_deref() == Some("sharegpt") => {
            data.format = DataFormat::Sharegpt;
            rename(data, "conversations", set.text("conversation_column")?);
        }
        DataFormat::Messages => rename(data, "messages", set.text("conversation_column")?),
        DataFormat::Sharegpt => rename(data, "conversations", mapped("conversations")?.flatten()),
        DataFormat::Alpaca => {
            for name in ["instruction", "input", "output"] {
                rename(data, name, mapped(name)?.flatten());
            }
        }
        DataFormat::Text => rename(data, "text", set.text("column")?),
        _ => {}
    }
    Ok(())
}
