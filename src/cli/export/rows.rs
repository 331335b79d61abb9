//! The trials, evaluations and steps of a study as files of rows.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::args::Args;
use crate::cli::CliError;
use crate::cli::row_formats::{FinishRows, RowFormat};
use crate::cli::whole_output::WholeOutput;
use crate::store::{SqlValue, StudyOverview, TrialRun};
use crate::track::Recommended;
use peft_tune_core::study::ParamValue;

/// The views that are written beside the trials, without the study's name.
const VIEWS: [(&str, &str); 2] = [
    (
        "evaluations",
        "select trial, step, tokens, loss, accuracy, target_tokens, seconds from trial_evaluation where study = ?1",
    ),
    (
        "steps",
        "select trial, phase, step, loss, learning_rate, grad_norm, tokens, target_tokens, data_s, forward_s, backward_s,
                optimizer_s, total_s
         from trial_step where study = ?1",
    ),
];

/// Writes `trials`, `evaluations` and `steps` with `ending`, and returns the files.
pub(super) fn write(args: &Args, format: RowFormat, ending: &str) -> Result<Vec<PathBuf>, CliError> {
    let path_of = |name: &str| args.output.join(format!("{name}.{ending}"));
    let (study, runs, recommended) = args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let runs = store.history().runs(study.id).await?;
        let recommended = Recommended::read(store, &study).await?;
        Ok((study, runs, recommended))
    })?;
    let views = VIEWS.into_iter().map(|(name, sql)| (name, Some(sql)));
    let mut written = Vec::new();
    for (name, sql) in std::iter::once(("trials", None)).chain(views) {
        let path = path_of(name);
        let (whole, output) = WholeOutput::create(&path, args.force)?;
        let mut sink = format.sink(output, None);
        match sql {
            None => write_trials(&mut *sink, &study, &runs, recommended.as_ref()).map_err(CliError::failed)?,
            Some(sql) => args
                .database
                .read(async |store| store.queries().run(sql, Some(&study.name), &mut *sink).await)?,
        }
        sink.finish().map_err(CliError::failed)?;
        written.push((path, whole));
    }
    // None is seen before all are whole: files of one study that do not belong together would be taken for its own.
    let keep = |(path, whole): (PathBuf, WholeOutput)| whole.keep().map(|()| path);
    written.into_iter().map(keep).collect()
}

/// One row a trial: what it was, its params, what it measured, its recipe; the recommended one's says why, and what it wins
/// against the baseline.
fn write_trials(
    sink: &mut dyn FinishRows,
    study: &StudyOverview,
    runs: &[TrialRun],
    recommended: Option<&Recommended>,
) -> std::io::Result<()> {
    let params: BTreeSet<&String> = runs.iter().flat_map(|run| run.trial.params.keys()).collect();
    let metrics: BTreeSet<&str> = runs
        .iter()
        .filter_map(|run| run.trial.state.metrics())
        .flat_map(|metrics| metrics.iter().map(|(name, _)| name))
        .collect();
    let mut names: Vec<String> = [
        "study",
        "trial",
        "state",
        "reason",
        "attempt",
        "started_at",
        "ended_at",
        "wall_s",
    ]
    .map(str::to_owned)
    .to_vec();
    names.extend(params.iter().map(|name| format!("param.{name}")));
    names.extend(metrics.iter().map(|name| format!("metric.{name}")));
    names.extend(["recipe", "recommended", "against_baseline"].map(str::to_owned));
    sink.columns(&names)?;
    for run in runs {
        let mut row = vec![
            SqlValue::Text(study.name.as_str().into()),
            SqlValue::Integer(run.trial.number.0.cast_signed()),
            SqlValue::Text(run.trial.state.name().into()),
            optional(run.reason.as_deref()),
            SqlValue::Integer(run.attempt.cast_signed()),
            SqlValue::Text(run.started_at.as_str().into()),
            optional(run.ended_at.as_deref()),
            run.wall_s.map_or(SqlValue::Null, SqlValue::Real),
        ];
        row.extend(
            params
                .iter()
                .map(|name| run.trial.params.get(name).map_or(SqlValue::Null, param)),
        );
        let measured = run.trial.state.metrics();
        row.extend(metrics.iter().map(|name| {
            let value = measured.and_then(|metrics| metrics.value(name));
            value.map_or(SqlValue::Null, SqlValue::Real)
        }));
        let recipe = run.recipe.as_ref().map(ToString::to_string);
        row.push(optional(recipe.as_deref()));
        let chosen = recommended.filter(|one| one.trial == run.trial.number);
        row.push(optional(chosen.map(|one| one.reason.as_str())));
        row.push(optional(chosen.and_then(|one| one.against_baseline.as_deref())));
        sink.row(&row)?;
    }
    Ok(())
}

fn optional(text: Option<&str>) -> SqlValue<'_> {
    text.map_or(SqlValue::Null, |text| SqlValue::Text(text.into()))
}

fn param(value: &ParamValue) -> SqlValue<'_> {
    match value {
        ParamValue::Bool(value) => SqlValue::Integer(i64::from(*value)),
        ParamValue::Int(value) => SqlValue::Integer(*value),
        ParamValue::Float(value) => SqlValue::Real(*value),
        ParamValue::Text(value) => SqlValue::Text(value.to_string().into()),
        ParamValue::List(_) => SqlValue::Text(value.to_string().into()),
    }
}
