//! `peft-tune plan --step`: where the seconds of a step go, on paper.

use std::path::PathBuf;

use super::args::Args;
use super::own_engine;
use super::step_text::{PlannedMachine, PlannedStep, to_json, to_text};
use crate::cli::CliError;
use crate::cli::data::study_file::recipe_of;
use crate::cli::data::study_rows::StudyRows;
use crate::cli::forecast::TrialDevice;
use crate::cli::terminal::output::{terminal_width, write_result};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict;
use peft_tune_core::predict::{DataSheet, Machine, Predictor, Setting, Workload};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::predictor;

/// Predicts and prints.
///
/// # Errors
/// Bad input: recipes that cannot be read, do not fit the model, or cannot train together.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let asked = asked(args)?;
    let sheet = args.device.as_deref().map(predict::device).transpose();
    let sheet = sheet.map_err(CliError::bad_input)?;
    let (predictor, machine) = predictor_of(args, &asked, sheet)?;
    let settings = asked.iter().map(|(recipe, workload)| Setting { recipe, workload });
    let settings: Vec<Setting<'_>> = settings.collect();
    let costs = predictor.step_costs(&settings).map_err(CliError::bad_input)?;
    let peak_bytes = predictor.predict_group(&settings).map_err(CliError::bad_input)?;
    let flops = settings.iter().map(|setting| Ok(predictor.flops(setting)?.model));
    let flops: Result<f64, _> = flops.sum::<Result<f64, predict::PredictError>>();
    let planned = PlannedStep {
        recipes: &args.step.step,
        settings: asked
            .iter()
            .map(|(recipe, _)| own_engine::setting_text(recipe))
            .collect(),
        has_schedule: asked.iter().any(|(recipe, _)| !recipe.precision_schedule.is_none()),
        machine: &machine,
        costs: &costs,
        peak_bytes,
        model_flops: flops.map_err(CliError::bad_input)?,
        peak_flops_per_s: sheet.map(|sheet| {
            let recipe = &asked[0].0;
            sheet.peak_flops(recipe.precision) * recipe.batch.devices as f64
        }),
    };
    let text = match args.json {
        true => to_json(&planned).map_err(CliError::failed)? + "\n",
        false => to_text(&planned, terminal_width()),
    };
    write_result(&text)
}

/// The recipes, with what each trains on.
fn asked(args: &Args) -> Result<Vec<(Recipe, Workload)>, CliError> {
    let one = |file: &PathBuf| -> Result<(Recipe, Workload), CliError> {
        let (mut recipe, has_data) = recipe_of(file)?;
        if let Some(model) = &args.stack.model {
            recipe.model.clone_from(model);
        }
        if let Some(devices) = args.stack.devices {
            recipe.batch.devices = usize::try_from(devices).map_err(CliError::bad_input)?;
        }
        let workload = workload(&recipe, has_data)?;
        Ok((recipe, workload))
    };
    args.step.step.iter().map(one).collect()
}

/// The micro-batches of a recipe; full ones where its rows cannot be looked at.
fn workload(recipe: &Recipe, has_data: bool) -> Result<Workload, CliError> {
    let rows = match has_data {
        true => StudyRows::of(recipe)?,
        false => None,
    };
    let batch = &recipe.batch;
    match rows {
        Some(rows) => Ok(rows.lengths_in(batch)?.workload(batch.micro_batch)),
        None => Ok(Workload::full(batch.micro_batch, batch.sequence_length)),
    }
}

/// Predictor of the recipes' model, and its machine.
fn predictor_of(
    args: &Args,
    asked: &[(Recipe, Workload)],
    sheet: Option<&'static DataSheet>,
) -> Result<(Predictor, PlannedMachine), CliError> {
    let files = ModelFiles::resolve_config(&asked[0].0.model).map_err(CliError::bad_input)?;
    let architecture = Architecture::from_config(&files).map_err(CliError::bad_input)?;
    if let Some(sheet) = sheet {
        let machine = PlannedMachine {
            name: sheet.name.to_owned(),
            disturbed: 0.0,
        };
        return Ok((predictor(architecture, Machine::DataSheet(sheet)), machine));
    }
    let precisions: Vec<_> = asked.iter().flat_map(|(recipe, _)| recipe.precisions()).collect();
    let here = TrialDevice::of_plan(&args.database, args.threads.map(usize::from), &precisions)?;
    let machine = PlannedMachine {
        name: here.name.clone(),
        disturbed: here.disturbed,
    };
    let offloads = asked.iter().any(|(recipe, _)| !recipe.optimizer.offload.is_none());
    Ok((here.predictor(architecture, offloads), machine))
}
