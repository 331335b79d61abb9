//! A whole study for other tools: Optuna, MLflow, TensorBoard, and files of rows.

use std::path::PathBuf;

use super::args::{Args, RuleArgs, StudyFormat};
use super::{rows, tensorboard};
use crate::cli::CliError;
use crate::cli::row_formats::RowFormat;
use crate::cli::terminal::output::{tell, write_exact};
use crate::export::{ExportError, MlflowExperiment};
use crate::report::printable;
use crate::store::{StoreError, write_optuna};
use crate::track::{Recommended, TrackedStudy, TrackedTrial, mlflow_run};

/// Writes the study that the arguments name.
pub(super) fn run(args: &Args, format: StudyFormat) -> Result<(), CliError> {
    let chooses_trial = args.trial.is_some() || args.front || args.rule != RuleArgs::default();
    let is_for_tool = args.device.is_some() || args.strict || args.no_data;
    if chooses_trial || is_for_tool {
        return Err(CliError::bad(
            "this format takes the whole study: leave out --trial, --front and the options that choose a trial, and --device, \
             --strict and --no-data",
        ));
    }
    let files = match format {
        StudyFormat::Optuna => vec![optuna(args)?],
        StudyFormat::Csv => rows::write(args, RowFormat::Csv, "csv")?,
        StudyFormat::Parquet => rows::write(args, RowFormat::Parquet, "parquet")?,
        StudyFormat::Tensorboard => {
            let (study, trials) = read(args)?;
            tensorboard::write(args, &study, &trials)?
        }
        StudyFormat::Mlflow => {
            let (study, trials) = read(args)?;
            mlflow(args, &study, &trials)?
        }
    };
    for file in files {
        write_exact(&format!("{}\n", file.display()))?;
    }
    let recommended = args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        Recommended::read(store, &study).await
    })?;
    if let Some(one) = recommended {
        tell(format_args!("recommended: {}", printable(&one.reason)));
        one.against_baseline
            .iter()
            .for_each(|against| tell(format_args!("  {}", printable(against))));
    }
    Ok(())
}

fn read(args: &Args) -> Result<(TrackedStudy, Vec<TrackedTrial>), CliError> {
    args.database.read(async |store| {
        let study = TrackedStudy::read(store, args.study.as_deref()).await?;
        let study = study.with_recommended(store).await?;
        let mut trials = Vec::with_capacity(study.runs.len());
        for run in &study.runs {
            trials.push(TrackedTrial::read(store, &study, run).await?);
        }
        Ok((study, trials))
    })
}

fn optuna(args: &Args) -> Result<PathBuf, CliError> {
    let path = args.output.join("optuna.db");
    std::fs::create_dir_all(&args.output).map_err(|source| {
        CliError::from(StoreError::Io {
            path: args.output.clone(),
            source,
        })
    })?;
    args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let recommended = Recommended::read(store, &study).await?;
        let recommended = recommended.as_ref().map(Recommended::in_optuna);
        write_optuna(store, &study, recommended, &path, args.force).await
    })?;
    tell(format_args!("optuna-dashboard sqlite:///{}", path.display()));
    Ok(path)
}

fn mlflow(args: &Args, study: &TrackedStudy, trials: &[TrackedTrial]) -> Result<Vec<PathBuf>, CliError> {
    let runs: Vec<_> = trials.iter().map(|trial| mlflow_run(study, trial)).collect();
    let experiment = MlflowExperiment {
        name: &study.overview.name,
        created_at: &study.overview.created_at,
        runs: &runs,
    };
    let folder = experiment
        .write(&args.output, args.force)
        .map_err(|error| match error {
            ExportError::Exists { .. } => CliError::bad_input(error),
            error => CliError::failed(error),
        })?;
    tell(format_args!(
        "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}",
        args.output.display()
    ));
    tell(format_args!(
        "or move it into a database with `mlflow migrate-filestore`"
    ));
    Ok(vec![folder])
}
