//! A whole study for other tools: Optuna, MLflow, TensorBoard, and files of rows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Args, StudyFormat, rows, tensorboard};
use crate::cli::CliError;
use crate::cli::output::{tell, write_result};
use crate::export::{ExportError, MlflowExperiment, MlflowMetric, MlflowRun, MlflowStatus};
use crate::report::printable;
use crate::store::{StepRecord, StoreError, TrialRun};
use crate::track::{Recommended, TrackedStudy, TrackedTrial};
use peft_tune_core::study::{Phase, TrialState};

/// Writes the study that the arguments name.
pub(super) fn run(args: &Args, format: StudyFormat) -> Result<(), CliError> {
    if args.trial.is_some() || args.front || args.rule != super::RuleArgs::default() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "this format takes the whole study: leave out --trial, --front and the options that choose a trial"
        )));
    }
    let files = match format {
        StudyFormat::Optuna => vec![optuna(args)?],
        StudyFormat::Csv => rows::write(args, crate::cli::rows::RowFormat::Csv, "csv")?,
        StudyFormat::Parquet => rows::write(args, crate::cli::rows::RowFormat::Parquet, "parquet")?,
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
        write_result(&format!("{}\n", file.display()))?;
    }
    let recommended = args.database.read(async |store| {
        let study = store.study(args.study.as_deref()).await?;
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
        let study = store.study(args.study.as_deref()).await?;
        store.write_optuna(&study, &path, args.force).await
    })?;
    tell(format_args!("optuna-dashboard sqlite:///{}", path.display()));
    Ok(path)
}

fn mlflow(args: &Args, study: &TrackedStudy, trials: &[TrackedTrial]) -> Result<Vec<PathBuf>, CliError> {
    let runs: Vec<MlflowRun> = trials
        .iter()
        .map(|trial| mlflow_run(&trial.run, &trial.steps, study.recommended.as_ref()))
        .collect();
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

fn mlflow_run(run: &TrialRun, steps: &[StepRecord], recommended: Option<&Recommended>) -> MlflowRun {
    let params = run
        .trial
        .params
        .iter()
        .map(|(name, value)| (name.clone(), value.to_string()));
    let mut metrics: Vec<MlflowMetric> = Vec::new();
    let mut at_s = run.started_s;
    for step in steps {
        at_s += if step.total_s.is_finite() { step.total_s } else { 0.0 };
        if step.phase == Phase::Train {
            metrics.push(MlflowMetric::new("train_loss", step.loss, step.step, at_s));
            metrics.push(MlflowMetric::new("learning_rate", step.learning_rate, step.step, at_s));
        }
    }
    let end_s = run.ended_s.unwrap_or(at_s);
    for evaluation in &run.evaluations {
        metrics.push(MlflowMetric::new(
            "held_out_loss",
            evaluation.loss,
            evaluation.step,
            end_s,
        ));
    }
    let measured = run.trial.state.metrics();
    for (name, value) in measured.into_iter().flat_map(|metrics| metrics.iter()) {
        metrics.push(MlflowMetric::new(name, value, 0, end_s));
    }
    let reason = run.reason.clone().map(|reason| ("reason".to_owned(), reason));
    let tags: BTreeMap<String, String> = [("state".to_owned(), run.trial.state.name().to_owned())]
        .into_iter()
        .chain(reason)
        .chain(
            recommended
                .filter(|one| one.trial == run.trial.number)
                .into_iter()
                .flat_map(tags_of),
        )
        .collect();
    MlflowRun {
        number: run.trial.number,
        status: match run.trial.state {
            TrialState::Waiting | TrialState::Running => MlflowStatus::Running,
            TrialState::Complete { .. } => MlflowStatus::Finished,
            TrialState::Failed { .. } => MlflowStatus::Failed,
            TrialState::Pruned { .. } | TrialState::Skipped { .. } => MlflowStatus::Killed,
        },
        started_s: run.started_s,
        ended_s: run.ended_s,
        params: params.collect(),
        metrics,
        tags,
        recipe: run
            .recipe
            .as_ref()
            .and_then(|recipe| serde_saphyr::to_string(recipe).ok()),
    }
}

/// What the recommended trial's run is tagged with.
fn tags_of(recommended: &Recommended) -> impl Iterator<Item = (String, String)> {
    let against = recommended.against_baseline.clone();
    let against = against.map(|against| ("against_baseline".to_owned(), against));
    [("recommended".to_owned(), recommended.reason.clone())]
        .into_iter()
        .chain(against)
}
