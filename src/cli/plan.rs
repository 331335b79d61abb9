//! `peft-tune plan`: what the settings of a study would cost, before anything runs.

use std::path::PathBuf;

use super::CliError;
use super::database::{DatabaseArgs, block_on};
use super::epochs;
use super::forecast;
use super::learning_rate;
use super::output::{tell, terminal_width, write_result};
use super::plan_stack;
use super::plan_stack::StackArgs;
use super::plan_text::{to_json, to_text};
use super::prepare::prepared;
use crate::space::{Study, StudyFile};
use crate::store::Store;
use crate::tune::{CostSurvey, Forecast};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict;
use peft_tune_core::predict::{DataSheet, Machine, Predictor};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::hub::ModelFiles;

/// Predicts memory and throughput of a study's settings, the front, and the time that the search will take. Nothing is
/// trained, and no weights are read.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Search-space file (YAML).
    #[arg(required_unless_present = "check")]
    file: Option<PathBuf>,
    /// A device other than this machine, such as `A100 80GB`, `H100 SXM`, `L4`, `RTX 4090`: predicted from its data sheet.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Settings to show, best throughput first.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Threads a trial computes with [default: all cores].
    #[arg(long, value_name = "N", conflicts_with = "device")]
    threads: Option<usize>,
    /// Prints JSON with raw numbers.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    stack: StackArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Predicts and prints.
pub(super) fn run(args: Args) -> Result<(), CliError> {
    let Some(file) = args.file.as_deref().filter(|_| !args.stack.is_asked()) else {
        return plan_stack::run(args.file.as_deref(), &args.stack, args.device.as_deref(), args.json);
    };
    let study = StudyFile::read(file)?;
    if let Some(warning) = learning_rate::warning(&study) {
        tell(format_args!("warning: {warning}"));
    }
    if let Some(target) = study.target {
        let stack = target.stack.name();
        tell(format_args!(
            "the study is for {target}: this is what its trials cost here; --stack {stack} says what {stack} needs"
        ));
    }
    let sheet = args.device.as_deref().map(predict::device).transpose();
    let sheet = sheet.map_err(CliError::bad_input)?;
    let (forecast, machine) = forecast_of(&args, &study, sheet)?;
    let survey = CostSurvey::new(&study, &forecast);
    if let (0, Some(reason)) = (survey.predicted, &survey.first_reason) {
        let message = format!("no setting of {} can be predicted: {reason}", file.display());
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    let text = match args.json {
        true => to_json(&study, &survey, &machine, sheet, args.top).map_err(CliError::failed)? + "\n",
        false => to_text(&study, &survey, &machine, args.top, terminal_width()),
    };
    write_result(&text)
}

/// The forecast, and the name of the machine that it is for.
fn forecast_of(args: &Args, study: &Study, sheet: Option<&'static DataSheet>) -> Result<(Forecast, String), CliError> {
    let Some(base) = &study.base else {
        let message = "a study with a command backend cannot be planned: only the program knows what a trial costs";
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    };
    // A model that lies here has its tokenizer beside it, and the data can be read; else rows are taken as full.
    let files = ModelFiles::resolve_config(&base.model).map_err(CliError::bad_input)?;
    let architecture = Architecture::from_config(&files).map_err(CliError::bad_input)?;
    let local = std::path::Path::new(&base.model).is_dir();
    let whole = local
        .then(|| ModelFiles::resolve_weights(&base.model, &mut ()).ok())
        .flatten();
    let rows = match whole.map(|files| rows_of(study, base, &files)) {
        Some(Ok(rows)) => rows,
        Some(Err(error)) => {
            tell(format_args!("warning: every row is assumed to be full: {error}"));
            forecast::Rows::new()
        }
        None => {
            tell(format_args!(
                "warning: every row is assumed to be full: the model's tokenizer or weights are not here"
            ));
            forecast::Rows::new()
        }
    };
    if let Some(sheet) = sheet {
        let machine = Machine::DataSheet(sheet);
        let forecast = Forecast::new(study, Predictor::new(architecture, machine), rows);
        return Ok((forecast.within(sheet.memory_bytes as f64), sheet.name.to_owned()));
    }
    let precisions = forecast::precisions(study, base);
    let here = block_on(async {
        let store = Store::open(&args.database.path()).await?;
        let here = forecast::Here::find(None, &store, args.threads, &precisions).await;
        store.close().await?;
        here
    })?;
    let name = here.name.clone();
    Ok((here.forecast(study, architecture, rows), name))
}

/// The lengths of the training rows. Says how often a trial goes over them where that is more than once.
fn rows_of(study: &Study, base: &Recipe, files: &ModelFiles) -> Result<forecast::Rows, CliError> {
    let data = prepared(base, files)?;
    if let Some(warning) = epochs::warning_of_study(study, base, &data)? {
        tell(format_args!("warning: {warning}"));
    }
    forecast::rows_of(study, base, files)
}
