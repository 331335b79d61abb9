//! What tools built on transformers' `TrainingArguments` share: optimizer, schedule, length, evaluation, order.

use serde_json::Value;

use super::{Keys, Reader, StackFileError, tables};
use crate::known_keys::{is_off, written};
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{OptimizerKind, ParamValue, Precision, ScheduleKind, TrainingLength};

/// A tool's names for what all of them have.
pub(crate) struct TrainerKeys {
    pub epochs: &'static str,
    pub optimizer: &'static str,
    /// The optimizer where the file names none.
    pub usual_optimizer: &'static str,
    pub scheduler: &'static str,
    /// The seed where the file names none.
    pub usual_seed: u64,
    /// `warmup_steps: 0` is no warm-up whatever share stands beside it, where transformers takes the share.
    pub no_steps_win: bool,
    /// A backend or a mode of the compiler turns it on.
    pub compiles_by_mode: bool,
}

impl TrainerKeys {
    /// The names of transformers' `TrainingArguments`, with TRL's optimizer.
    pub(crate) const OF_TRANSFORMERS: Self = Self {
        epochs: "num_train_epochs",
        optimizer: "optim",
        usual_optimizer: "adamw_torch_fused",
        scheduler: "lr_scheduler_type",
        usual_seed: 42,
        no_steps_win: false,
        compiles_by_mode: true,
    };
}

/// Reads all of them.
///
/// # Errors
/// A value that the tool would not take.
pub(crate) fn read(reader: &mut Reader<'_>, names: &TrainerKeys) -> Result<(), StackFileError> {
    optimizer(reader, names)?;
    course(reader, names)?;
    evaluation(reader)?;
    compiler(reader, names)?;
    let keys = reader.keys;
    if !keys.has("per_device_train_batch_size") {
        reader.value("micro_batch", "per_gpu_train_batch_size", keys)?;
    }
    reader.recipe.training.seed = seed(keys)?.unwrap_or(names.usual_seed);
    match keys.text("train_sampling_strategy")?.as_deref() {
        Some("sequential") => reader.recipe.training.shuffle = false,
        Some("group_by_length") => reader.recipe.batch.group_by_length = true,
        _ => {}
    }
    if let Some(grouped) = keys.flag("group_by_length")? {
        reader.recipe.batch.group_by_length = grouped;
    }
    reading(reader)
}

/// The seed that the file names.
///
/// # Errors
/// A value that is no whole number, or one below 0.
pub(crate) fn seed(keys: &Keys<'_>) -> Result<Option<u64>, StackFileError> {
    let Some(found) = keys.raw("seed") else { return Ok(None) };
    let number = keys.number("seed")?.filter(|seed| *seed >= 0.0 && seed.fract() == 0.0);
    let number = number.ok_or_else(|| keys.wrong("seed", found, "write a whole number, 0 or more"))?;
    Ok(Some(number as u64))
}

/// The compiler, and products of F32 in TF32, which no recipe has.
fn compiler(reader: &mut Reader<'_>, names: &TrainerKeys) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let has_mode = ["torch_compile_backend", "torch_compile_mode"].map(|key| keys.has(key));
    if names.compiles_by_mode && has_mode.contains(&true) {
        reader.recipe.torch.torch_compile = true;
        reader.said("torch_compile");
    }
    if keys.flag("tf32")?.unwrap_or(false) && reader.recipe.precision == Precision::Fp32 {
        reader.note("`tf32: true` is not carried over: products of F32 are in TF32 there, and in F32 here");
    }
    Ok(())
}

/// What reads rows: threads that tokenise, processes of the loader, and how far it is ahead.
fn reading(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    for key in ["dataset_num_proc", "dataset_processes", "preprocessing_num_workers"] {
        if let Some(workers) = keys.count(key)? {
            reader.recipe.data.tokenizing_workers = Some(workers as usize);
        }
    }
    let factor = keys.count("dataloader_prefetch_factor")?;
    let Some(found) = keys.raw("dataloader_num_workers") else {
        return Ok(());
    };
    // 0 is a number here: rows are read within the step.
    let workers = keys
        .number("dataloader_num_workers")?
        .filter(|workers| *workers >= 0.0 && workers.fract() == 0.0);
    let workers =
        workers.ok_or_else(|| keys.wrong("dataloader_num_workers", found, "write a whole number, 0 or more"))? as u64;
    let accumulation = reader.recipe.batch.gradient_accumulation.max(1) as u64;
    let depth = factor.map(|factor| workers.saturating_mul(factor).div_ceil(accumulation));
    let mut set = |name: &'static str, value: u64| {
        let value = ParamValue::Int(i64::try_from(value).unwrap_or(i64::MAX));
        let row = setting(name).filter(|row| row.legal.allows(&value));
        if row.is_none_or(|row| (row.set)(&mut reader.recipe, &value).is_err()) {
            return Err(keys.wrong("dataloader_num_workers", found, "write a number that is smaller"));
        }
        reader.said(name);
        Ok(())
    };
    match (workers, depth) {
        (0, _) => set("prefetch_depth", 0),
        // So a depth is exported.
        (1, Some(depth)) => set("prefetch_depth", depth),
        (workers, depth) => {
            set("dataloader_num_workers", workers)?;
            depth.map_or(Ok(()), |depth| set("prefetch_depth", depth))
        }
    }
}

fn optimizer(reader: &mut Reader<'_>, names: &TrainerKeys) -> Result<(), StackFileError> {
    let keys = reader.keys;
    // An earlier version has a flag for one.
    let is_adafactor = keys.flag("adafactor")?.unwrap_or(false);
    let name = match is_adafactor {
        true => Some(OptimizerKind::Adafactor.name().to_owned()),
        false => keys.text(names.optimizer)?,
    };
    if let Some(name) = &name {
        reader.optimizer(names.optimizer, name);
    }
    // The fused one updates in place.
    reader.choices.foreach = Some(name.as_deref().unwrap_or(names.usual_optimizer) == "adamw_torch");
    if reader.recipe.optimizer.kind == OptimizerKind::Sgd {
        // It has none unless it is asked for.
        reader.recipe.optimizer.momentum = 0.0;
    }
    if keys.has("max_grad_norm") {
        // 0 never clips there.
        reader.recipe.optimizer.max_grad_norm = keys.bound("max_grad_norm")?;
        reader.said("max_grad_norm");
    }
    for (name, value) in optimizer_arguments(keys)? {
        match (name.as_str(), value.parse::<f64>()) {
            ("momentum", Ok(momentum)) if (0.0..1.0).contains(&momentum) => {
                reader.recipe.optimizer.momentum = momentum;
                reader.said("momentum");
            }
            ("nesterov", _) => {
                reader.recipe.optimizer.nesterov = value.eq_ignore_ascii_case("true");
                reader.said("nesterov");
            }
            _ => reader.note(format!("`optim_args: {name}` has no setting here, and is left out")),
        }
    }
    Ok(())
}

/// Arguments of the optimizer with their values: a text of pairs, or a map as axolotl has it too.
fn optimizer_arguments(keys: &Keys<'_>) -> Result<Vec<(String, String)>, StackFileError> {
    const KEY: &str = "optim_args";
    if let Some(Value::Object(entries)) = keys.raw(KEY) {
        let entries = entries.iter().map(|(name, value)| (name.clone(), written(value)));
        return Ok(entries.collect());
    }
    let text = keys.text(KEY)?.unwrap_or_default();
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
    Ok(pairs.collect())
}

fn course(reader: &mut Reader<'_>, names: &TrainerKeys) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let steps = keys.number("max_steps")?.filter(|steps| *steps >= 1.0);
    let passes = keys.number(names.epochs)?.filter(|epochs| *epochs > 0.0);
    match (steps, passes) {
        // Steps win over epochs there.
        (Some(steps), _) => reader.recipe.training.length = TrainingLength::Steps(steps as u64),
        (None, Some(passes)) => reader.recipe.training.length = TrainingLength::Epochs(passes),
        (None, None) => {}
    }
    warmup(reader, names.no_steps_win)?;
    if let Some(name) = keys.text(names.scheduler)? {
        let found = tables::schedule(keys, reader.tool).or_else(|| ScheduleKind::from_name(&name));
        reader.schedule(names.scheduler, &name, found);
    }
    schedule_arguments(reader)
}

/// The warm-up: its steps, or without any a share of all steps.
fn warmup(reader: &mut Reader<'_>, no_steps_win: bool) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let warmup = match (keys.number("warmup_steps")?, keys.number("warmup_ratio")?) {
        (Some(steps), Some(share)) if steps > 0.0 || no_steps_win => {
            let version = match no_steps_win {
                true => "",
                false => " in transformers 4, and the share before the steps in 5",
            };
            reader.note(format!(
                "`warmup_steps: {steps}` goes before `warmup_ratio: {share}`{version}: the steps are taken; leave one of them out"
            ));
            steps
        }
        (_, Some(share)) => {
            if share >= 1.0 {
                reader.note(format!(
                    "`warmup_ratio: {share}` is no share below 1: so many steps are taken; write `warmup_steps`"
                ));
            }
            share
        }
        (Some(steps), None) => steps,
        (None, None) => return Ok(()),
    };
    reader.recipe.schedule.warmup = warmup.max(0.0);
    reader.said("warmup");
    Ok(())
}

/// The arguments of the schedule, under the names of transformers' functions.
fn schedule_arguments(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    const KEY: &str = "lr_scheduler_kwargs";
    let keys = reader.keys;
    let Some(part) = keys.part(KEY, "lr_scheduler_kwargs.") else {
        return match keys.raw(KEY).filter(|found| !is_off(found)) {
            Some(found) => Err(keys.wrong(KEY, found, "write a map of the schedule's arguments")),
            None => Ok(()),
        };
    };
    let lowest = part.number("min_lr")?;
    let rate = reader.recipe.optimizer.learning_rate;
    if let Some(lowest) = lowest.filter(|_| reader.recipe.schedule.kind == ScheduleKind::CosineWithMinLr) {
        reader.recipe.schedule.min_lr_rate = Some((lowest / rate).clamp(0.0, 1.0));
        reader.said("min_lr_rate");
    }
    schedule_values(reader, &part, "write a value that transformers takes")?;
    reader.part_unread(&part, "lr_scheduler_kwargs.");
    Ok(())
}

/// Takes the arguments that the schedule's kind has, out of the part of a file that holds them.
///
/// # Errors
/// A value that the schedule does not take, with what to write `instead`.
pub(crate) fn schedule_values(
    reader: &mut Reader<'_>,
    part: &Keys<'_>,
    instead: &'static str,
) -> Result<(), StackFileError> {
    for (argument, name) in reader.recipe.schedule.kind.row().arguments {
        let (Some(row), Some(found)) = (setting(name), part.raw(argument)) else {
            continue;
        };
        let value = match found {
            Value::String(text) => ParamValue::from(text.as_str()),
            other => other.as_f64().map_or(ParamValue::Bool(false), ParamValue::Float),
        };
        if !row.legal.allows(&value) || (row.set)(&mut reader.recipe, &value).is_err() {
            return Err(part.wrong(argument, found, instead));
        }
        reader.said(row.name);
    }
    Ok(())
}

fn evaluation(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let strategy = keys.text("eval_strategy")?.or(keys.text("evaluation_strategy")?);
    let steps = keys.number("eval_steps")?;
    if strategy.as_deref().unwrap_or("steps") != "steps" {
        return Ok(());
    }
    reader.recipe.training.evaluate_every = steps.filter(|steps| *steps >= 1.0).map(|steps| steps as u64);
    // Less than one is a share of all steps.
    reader.later.evaluation_share = steps.filter(|share| *share > 0.0 && *share < 1.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Imported, parse_recipe};

    fn of(text: &str) -> Imported {
        parse_recipe(Path::new("settings.yaml"), text, None).unwrap()
    }

    const TRL: &str = "model_name_or_path: m\nuse_peft: true\nlora_r: 8\n";
    const LLAMA_FACTORY: &str = "model_name_or_path: m\nstage: sft\nlora_target: all\n";
    const AXOLOTL: &str = "base_model: m\nadapter: lora\n";
    const TORCHTUNE: &str = "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\n";

    #[test]
    fn steps_of_a_warm_up_go_before_a_share_as_the_tool_has_them() {
        for (tool, keys, warmup, note) in [
            (TRL, "warmup_steps: 0\nwarmup_ratio: 0.1\n", 0.1, ""),
            (LLAMA_FACTORY, "warmup_steps: 0\nwarmup_ratio: 0.1\n", 0.1, ""),
            (TRL, "warmup_steps: 0\n", 0.0, ""),
            (TRL, "warmup_steps: 0.2\n", 0.2, ""),
            (
                TRL,
                "warmup_steps: 9\nwarmup_ratio: 0.1\n",
                9.0,
                "`warmup_steps: 9` goes before `warmup_ratio: 0.1` in transformers 4",
            ),
            (TRL, "warmup_ratio: 5\n", 5.0, "`warmup_ratio: 5` is no share"),
            (
                AXOLOTL,
                "warmup_steps: 0\nwarmup_ratio: 0.1\n",
                0.0,
                "`warmup_steps: 0` goes before `warmup_ratio: 0.1`: the steps",
            ),
            (AXOLOTL, "warmup_ratio: 0.1\n", 0.1, ""),
        ] {
            let imported = of(&format!("{tool}{keys}"));
            assert_eq!(imported.recipe.schedule.warmup, warmup, "{tool}{keys}");
            let told = imported.notes.iter().filter(|note| note.contains("`warmup_"));
            let told: Vec<&str> = told.map(String::as_str).collect();
            assert!(
                told.iter().all(|told| !note.is_empty() && told.contains(note)) && told.is_empty() == note.is_empty(),
                "{tool}{keys}: {told:?}"
            );
        }
    }

    #[test]
    fn numbers_are_finite_and_a_norm_without_bound_clips_nothing() {
        for (text, norm) in [
            (format!("{TRL}max_grad_norm: 0.3\n"), Some(0.3)),
            (format!("{TRL}max_grad_norm: 0\n"), None),
            (format!("{TRL}max_grad_norm: 'inf'\n"), None),
            (format!("{TORCHTUNE}clip_grad_norm: 'inf'\n"), None),
            (format!("{TORCHTUNE}clip_grad_norm: 0.5\n"), Some(0.5)),
        ] {
            assert_eq!(of(&text).recipe.optimizer.max_grad_norm, norm, "{text}");
        }
        for key in ["warmup_steps", "num_train_epochs", "max_steps", "max_grad_norm"] {
            let text = format!("{TRL}{key}: 'nan'\n");
            let error = parse_recipe(Path::new("settings.yaml"), &text, None).unwrap_err();
            assert!(error.to_string().contains("write a number"), "{text}: {error}");
        }
        let text = format!("{TRL}warmup_steps: 'inf'\n");
        assert!(parse_recipe(Path::new("settings.yaml"), &text, None).is_err());
    }

    #[test]
    fn arguments_of_an_optimizer_are_a_text_or_a_map() {
        for arguments in [
            "optim_args: momentum=0.8, nesterov=true\n",
            "optim_args: {momentum: 0.8, nesterov: true}\n",
        ] {
            let optimizer = of(&format!("{AXOLOTL}optimizer: sgd\n{arguments}")).recipe.optimizer;
            assert_eq!((optimizer.momentum, optimizer.nesterov), (0.8, true), "{arguments}");
        }
    }

    #[test]
    fn arguments_of_a_schedule_are_a_map_or_the_text_of_one() {
        for arguments in ["{min_lr_rate: 0.2}", "'{\"min_lr_rate\": 0.2}'", "none"] {
            let text = format!("{TRL}lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {arguments}\n");
            let schedule = of(&text).recipe.schedule;
            assert_eq!(schedule.min_lr_rate.is_some(), arguments != "none", "{arguments}");
        }
        let text = format!("{TRL}lr_scheduler_kwargs: min_lr_rate=0.2\n");
        let error = parse_recipe(Path::new("settings.yaml"), &text, None).unwrap_err();
        assert!(error.to_string().contains("write a map"), "{error}");
    }

    #[test]
    fn a_file_without_a_seed_has_that_of_its_tool() {
        for tool in [TRL, LLAMA_FACTORY, AXOLOTL] {
            assert_eq!(of(tool).recipe.training.seed, 42, "{tool}");
            assert_eq!(of(&format!("{tool}seed: 0\n")).recipe.training.seed, 0, "{tool}");
        }
        for tool in [TRL, TORCHTUNE] {
            let error = parse_recipe(Path::new("settings.yaml"), &format!("{tool}seed: -1\n"), None).unwrap_err();
            assert!(error.to_string().contains("`seed` is -1"), "{error}");
        }
    }
}
