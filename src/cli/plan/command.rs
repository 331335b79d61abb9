//! `peft-tune plan`: what the settings of a study would cost, before anything runs.

use std::path::{Path, PathBuf};

use super::args::Args;
use super::gpus;
use super::stack;
use super::step;
use super::text::{About, StudyPlan, to_json, to_text};
use super::unpredicted::refuse_unpredicted;
use crate::cli::CliError;
use crate::cli::data::epochs;
use crate::cli::data::learning_rate;
use crate::cli::data::mixture;
use crate::cli::data::study_file::{base_of, study_for};
use crate::cli::data::study_rows::StudyRows;
use crate::cli::forecast::{PredictedModel, TrialDevice, check_predicted, precisions_of};
use crate::cli::options::price::price_of_planned;
use crate::cli::search::{other_family, trl};
use crate::cli::terminal::output::{tell, terminal_width, write_result};
use crate::report::{Lengths, summary_line};
use crate::space::{Backend, Study, TrlBackend};
use crate::tune::{CostSurvey, Forecast, TrainingRows};
use peft_tune_core::predict;
use peft_tune_core::predict::{DataSheet, WorkerPrice};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_kernels::device::first_gpu;

/// Predicts and prints.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    if !args.step.step.is_empty() {
        return step::run(&args);
    }
    let Some(file) = args.file.as_deref().filter(|_| !args.stack.is_asked()) else {
        let (file, device) = (args.file.as_deref(), args.device.as_deref());
        return stack::run(file, &args.stack, device, &args.database, args.json);
    };
    let (study, has_data) = study_for(file, args.backend)?;
    if let Some(base) = &study.base {
        check_predicted(&study.backend, base)?;
    }
    if let Backend::Trl(TrlBackend { loader, .. }) = study.backend {
        trl::check_anywhere(&study, loader)?;
    }
    if let Some(warning) = learning_rate::warning(&study) {
        tell(format_args!("warning: {warning}"));
    }
    if let Some(target) = study.target {
        let stack = target.stack.name();
        tell(format_args!(
            "the study is for {target}: this is what its trials cost here; --stack {stack} says what {stack} needs"
        ));
    }
    if study.engine_is_open {
        tell(
            "the study leaves its engine to the search (`backend: auto`): these are costs of the native engine; --backend trl predicts \
             TRL's",
        );
    }
    let sheet = args.device.as_deref().map(predict::device).transpose();
    let sheet = sheet.map_err(CliError::bad_input)?;
    let config = config_of(&study, sheet.is_none() && !args.gpus)?;
    let looked_at = rows_of(&study, has_data)?;
    let (rows, lengths) = looked_at.unwrap_or_default();
    if args.gpus {
        let model = PredictedModel::of(&study.backend, base_of(&study)?, &config)?;
        return gpus::run(&args, &study, &model, &rows);
    }
    let price = price_of(&args, &study, sheet)?;
    let MachineForecast {
        forecast,
        machine,
        doubtful,
    } = MachineForecast::of(&args, &study, &config, sheet, rows)?;
    let survey = CostSurvey::new(&study, &forecast);
    let about = doubtful.map(|Doubtful { forecast, disturbed }| About {
        tokens_per_s: CostSurvey::quick(&study, &forecast).fastest(),
        disturbed,
    });
    refuse_unpredicted(&study, &survey)?;
    let plan = StudyPlan {
        study: &study,
        survey: &survey,
        forecast: &forecast,
        price: price.as_ref(),
        machine: &machine,
        about: about.as_ref(),
        sheet,
        lengths: lengths.as_ref(),
        stack: forecast.stack(),
        is_host: forecast.is_on_host(),
    };
    let text = match args.json {
        true => to_json(&plan, args.top).map_err(CliError::failed)? + "\n",
        false => to_text(&plan, args.top, terminal_width()),
    };
    write_result(&text)
}

/// Price of what a plan's trials run on: of the device of a `sheet`, else of this machine's.
///
/// # Errors
/// Bad input: a price of another device.
fn price_of(args: &Args, study: &Study, sheet: Option<&'static DataSheet>) -> Result<Option<WorkerPrice>, CliError> {
    let here = || first_gpu().map(|gpu| predict::device_of_driver(&gpu.name).map(|sheet| sheet.name));
    // A GPU without data sheet is one without a name here.
    let device = sheet.map(|sheet| Some(sheet.name)).or_else(here);
    let of_study = study.price.as_ref().filter(|_| sheet.is_none());
    let price = price_of_planned(&args.price, device.flatten(), of_study)?;
    Ok(price.map(|price| WorkerPrice {
        device: price,
        // Processes on the processor share the machine.
        devices: device.map_or(1, |_| study.most_devices() as u64),
    }))
}

/// Forecast of a study for one machine.
struct MachineForecast {
    /// Forecast without speeds where this machine's was measured beside other programs.
    forecast: Forecast,
    /// Name of the machine.
    machine: String,
    /// Forecast by such a speed.
    doubtful: Option<Doubtful>,
}

/// Forecast by a speed that was measured beside other programs.
struct Doubtful {
    forecast: Forecast,
    /// Share of the speed that they may have taken.
    disturbed: f64,
}

impl MachineForecast {
    /// The forecast for the device of a `sheet`, else for this machine, by the model's `config.json`.
    fn of(
        args: &Args,
        study: &Study,
        config: &Path,
        sheet: Option<&'static DataSheet>,
        rows: TrainingRows,
    ) -> Result<Self, CliError> {
        let base = base_of(study)?;
        let model = PredictedModel::of(&study.backend, base, config)?;
        if let Some(sheet) = sheet {
            let forecast = Forecast::new(study, model.on_sheet(sheet), rows);
            return Ok(Self {
                forecast: forecast.within(sheet.memory_bytes as f64),
                machine: sheet.name.to_owned(),
                doubtful: None,
            });
        }
        let precisions = precisions_of(study, base);
        let here = TrialDevice::of_plan(&args.database, args.threads.map(usize::from), &precisions)?;
        let (machine, disturbed) = (here.name.clone(), here.disturbed);
        if disturbed == 0.0 {
            return Ok(Self {
                forecast: here.forecast(study, model, rows),
                machine,
                doubtful: None,
            });
        }
        Ok(Self {
            forecast: here.without_speed().forecast(study, model.clone(), rows.clone()),
            machine,
            doubtful: Some(Doubtful {
                forecast: here.forecast(study, model, rows),
                disturbed,
            }),
        })
    }
}

/// The `config.json` of a study's model, where its trials can have the model and, where they run here, their device: nothing is read of
/// the data of a study that is refused.
///
/// # Errors
/// Bad input: a model that is not found, or that trials do not have; trials that run on GPUs alone, where there is none.
fn config_of(study: &Study, runs_here: bool) -> Result<PathBuf, CliError> {
    let config = ModelFiles::resolve_config(&base_of(study)?.model).map_err(CliError::bad_input)?;
    if let Backend::Trl(TrlBackend { loader, .. }) = study.backend {
        other_family::check_config(study, loader, &config)?;
    }
    if runs_here {
        check_gpu(study)?;
    }
    Ok(config)
}

/// Refuses costs on this machine of trials that it does not have.
///
/// # Errors
/// Bad input: trials that run on GPUs alone, where there is none.
fn check_gpu(study: &Study) -> Result<(), CliError> {
    match study.backend {
        Backend::Trl(TrlBackend { loader, .. }) if loader.needs_gpu() && first_gpu().is_none() => {
            Err(CliError::bad(format!(
                "trials in {} need a GPU, and this program sees none: name one with `--device`, such as `--device L4`",
                loader.title()
            )))
        }
        _ => Ok(()),
    }
}

/// The lengths of the training rows; `None` where they cannot be looked at, which is told. Says how often a trial goes over them
/// where that is more than once.
fn rows_of(study: &Study, has_data: bool) -> Result<Option<(TrainingRows, Option<Lengths>)>, CliError> {
    let base = base_of(study)?;
    if let Some(stand_in) = epochs::stand_in_of_study(study) {
        tell(format_args!("{stand_in}"));
    }
    if !has_data {
        return Ok(None);
    }
    let Some(rows) = StudyRows::of(base)? else {
        return Ok(None);
    };
    let of = if rows.sample.is_some() {
        "the data, by a sample"
    } else {
        "the data"
    };
    tell(format_args!("{of}: {}", summary_line(&rows.data.summary())));
    let looked_at = (|| {
        if rows.sample.is_none() {
            for warning in mixture::warnings(&base.data.train, &base.batch, None, &rows.data)? {
                tell(format_args!("warning: {warning}"));
            }
        }
        if rows.sample.is_none()
            && let Some(warning) = epochs::warning_of_study(study, base, &rows.data)?
        {
            tell(format_args!("warning: {warning}"));
        }
        Ok((rows.rows(study, base)?, Some(rows.lengths(study, base)?)))
    })();
    match looked_at {
        Ok(looked_at) => Ok(Some(looked_at)),
        Err(error) if error.exit_code() == 2 => Err(error),
        Err::<_, CliError>(error) => {
            tell(format_args!("warning: every row is assumed to be full: {error}"));
            Ok(None)
        }
    }
}
