//! The rows of an Optuna storage: <https://optuna.readthedocs.io/en/stable/reference/generated/optuna.storages.RDBStorage.html>.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::distribution::OptunaParameter;
use crate::store::row::{finite, to_i64};
use crate::store::{Store, StoreError, StudyOverview, TrialRun};
use peft_tune_core::objective::{Bound, Constraint, Direction};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Metrics, Trial, TrialNumber, TrialState};
use peft_tune_core::whole_file::WholeFile;

/// Tables and indexes, as Optuna makes them.
const SCHEMA: &str = include_str!("schema.sql");

/// Schema and library that Optuna compares with its own.
pub(super) const SCHEMA_VERSION: i64 = 12;
const LIBRARY_VERSION: &str = "5.0.0";

/// The trial to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecommendedTrial<'a> {
    pub trial: TrialNumber,
    /// Names and values of the notes on it.
    pub notes: Vec<(&'static str, &'a str)>,
}

/// Writes a study to a new file that `optuna.load_study(storage="sqlite:///PATH")` opens: directions, distributions,
/// values, held-out losses as intermediate values, constraints, and everything else as user attributes. `recommended` is
/// the trial to take, with the notes on it.
///
/// # Errors
/// [`StoreError::OptunaExists`] where `path` is taken and `force` is not given, or where writing fails; nothing is
/// left behind then.
pub async fn write_optuna(
    store: &Store,
    study: &StudyOverview,
    recommended: Option<RecommendedTrial<'_>>,
    path: &Path,
    force: bool,
) -> Result<(), StoreError> {
    if !force && path.symlink_metadata().is_ok() {
        return Err(StoreError::OptunaExists { path: path.to_owned() });
    }
    let runs = store.history().runs(study.id).await?;
    let space = store.definitions().search_space(study.id).await?;
    let parameters = parameters(&runs, space.as_ref());
    let failed = |source| StoreError::Io {
        path: path.to_owned(),
        source,
    };
    let (file, draft) = WholeFile::create_named(path, force).map_err(failed)?;
    write_draft(&draft, study, recommended, &runs, &parameters).await?;
    file.finish().map_err(failed)
}

async fn write_draft(
    path: &Path,
    study: &StudyOverview,
    recommended: Option<RecommendedTrial<'_>>,
    runs: &[TrialRun],
    parameters: &BTreeMap<String, OptunaParameter>,
) -> Result<(), StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Off)
        .foreign_keys(false);
    let failed = |error| StoreError::from_sqlx(path, error);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .map_err(failed)?;
    let rows = async {
        let mut transaction = pool.begin().await?;
        write_schema(&mut transaction).await?;
        let id = write_study(&mut transaction, study).await?;
        for run in runs {
            let trial = insert_trial(&mut transaction, id, run.trial.number).await?;
            write_trial(&mut transaction, trial, study, run, parameters).await?;
            if let Some(recommended) = recommended.as_ref().filter(|one| one.trial == run.trial.number) {
                write_notes(&mut transaction, trial, &recommended.notes).await?;
            }
        }
        transaction.commit().await
    };
    let written = rows.await;
    pool.close().await;
    written.map_err(failed)
}

/// Parameters of these trials as Optuna sees them.
pub(super) fn parameters(runs: &[TrialRun], space: Option<&SearchSpace>) -> BTreeMap<String, OptunaParameter> {
    let trials: Vec<&Trial> = runs.iter().map(|run| &run.trial).collect();
    let mut parameters = BTreeMap::new();
    for name in trials.iter().flat_map(|trial| trial.params.keys()) {
        if !parameters.contains_key(name) {
            parameters.insert(name.clone(), OptunaParameter::new(name, space, &trials));
        }
    }
    parameters
}

pub(super) async fn write_schema(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SCHEMA).execute(&mut *connection).await?;
    sqlx::query("insert into version_info values (1, ?, ?)")
        .bind(SCHEMA_VERSION)
        .bind(LIBRARY_VERSION)
        .execute(&mut *connection)
        .await
        .map(drop)
}

/// Writes the row of a study, and returns its id in the file.
pub(super) async fn write_study(connection: &mut SqliteConnection, study: &StudyOverview) -> Result<i64, sqlx::Error> {
    let id: i64 = sqlx::query_scalar("insert into studies (study_name) values (?) returning study_id")
        .bind(&study.name)
        .fetch_one(&mut *connection)
        .await?;
    for (place, objective) in (0i64..).zip(&study.objectives) {
        let direction = match objective.direction {
            Direction::Minimize => "MINIMIZE",
            Direction::Maximize => "MAXIMIZE",
        };
        sqlx::query("insert into study_directions (direction, study_id, objective) values (?, ?, ?)")
            .bind(direction)
            .bind(id)
            .bind(place)
            .execute(&mut *connection)
            .await?;
    }
    // The names of the objectives, which optuna-dashboard shows.
    let names: Vec<&str> = study
        .objectives
        .iter()
        .map(|objective| objective.metric.as_str())
        .collect();
    sqlx::query(
        "insert into study_system_attributes (study_id, \"key\", value_json) values (?, 'study:metric_names', ?)",
    )
    .bind(id)
    .bind(json!(names).to_string())
    .execute(&mut *connection)
    .await?;
    let attributes = [
        ("model", json!(study.model)),
        ("sampler", json!(study.sampler)),
        ("seed", json!(study.seed)),
        ("space", json!(study.space_path.to_string_lossy())),
    ];
    for (key, value) in attributes {
        sqlx::query("insert into study_user_attributes (study_id, \"key\", value_json) values (?, ?, ?)")
            .bind(id)
            .bind(key)
            .bind(value.to_string())
            .execute(&mut *connection)
            .await?;
    }
    Ok(id)
}

/// Makes the row of a trial, and returns its id in the file.
pub(super) async fn insert_trial(
    connection: &mut SqliteConnection,
    study: i64,
    number: TrialNumber,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("insert into trials (number, study_id, state) values (?, ?, 'WAITING') returning trial_id")
        .bind(number.0.cast_signed())
        .bind(study)
        .fetch_one(connection)
        .await
}

/// Writes a trial whose row is there, and nothing else of it.
pub(super) async fn write_trial(
    connection: &mut SqliteConnection,
    id: i64,
    study: &StudyOverview,
    run: &TrialRun,
    parameters: &BTreeMap<String, OptunaParameter>,
) -> Result<(), sqlx::Error> {
    let values = objective_values(study, &run.trial);
    write_state(connection, id, run, values.is_some()).await?;
    write_values(connection, id, values.unwrap_or_default()).await?;
    write_params(connection, id, run, parameters).await?;
    write_evaluations(connection, id, run).await?;
    write_attributes(connection, id, study, run).await
}

async fn write_state(
    connection: &mut SqliteConnection,
    id: i64,
    run: &TrialRun,
    has_values: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query("update trials set state = ?, datetime_start = ?, datetime_complete = ? where trial_id = ?")
        .bind(state(&run.trial, has_values))
        .bind(datetime(&run.started_at))
        .bind(run.ended_at.as_deref().map(datetime))
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
}

async fn write_values(connection: &mut SqliteConnection, id: i64, values: Vec<f64>) -> Result<(), sqlx::Error> {
    for (place, value) in (0i64..).zip(values) {
        sqlx::query("insert into trial_values (trial_id, objective, value, value_type) values (?, ?, ?, 'FINITE')")
            .bind(id)
            .bind(place)
            .bind(value)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn write_params(
    connection: &mut SqliteConnection,
    id: i64,
    run: &TrialRun,
    parameters: &BTreeMap<String, OptunaParameter>,
) -> Result<(), sqlx::Error> {
    for (name, value) in &run.trial.params {
        let Some(parameter) = parameters.get(name) else {
            continue;
        };
        let Some(number) = parameter.number(value) else {
            continue;
        };
        sqlx::query(
            "insert into trial_params (trial_id, param_name, param_value, distribution_json) values (?, ?, ?, ?)",
        )
        .bind(id)
        .bind(name)
        .bind(number)
        .bind(parameter.distribution.to_string())
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Writes the held-out losses as intermediate values.
async fn write_evaluations(connection: &mut SqliteConnection, id: i64, run: &TrialRun) -> Result<(), sqlx::Error> {
    for evaluation in &run.evaluations {
        let loss = finite(evaluation.loss);
        let step = to_i64(evaluation.step).unwrap_or(i64::MAX);
        sqlx::query(
            "insert into trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type)
             values (?, ?, ?, ?)",
        )
        .bind(id)
        .bind(step)
        .bind(loss)
        .bind(if loss.is_some() { "FINITE" } else { "NAN" })
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Writes the notes on the recommended trial beside its other attributes.
pub(super) async fn write_notes(
    connection: &mut SqliteConnection,
    trial: i64,
    notes: &[(&str, &str)],
) -> Result<(), sqlx::Error> {
    for (key, value) in notes {
        sqlx::query("insert or replace into trial_user_attributes (trial_id, \"key\", value_json) values (?, ?, ?)")
            .bind(trial)
            .bind(key)
            .bind(json!(value).to_string())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn write_attributes(
    connection: &mut SqliteConnection,
    id: i64,
    study: &StudyOverview,
    run: &TrialRun,
) -> Result<(), sqlx::Error> {
    let metrics = run.trial.state.metrics();
    let mut attributes: Vec<(String, Value)> = metrics
        .into_iter()
        .flat_map(|metrics| metrics.iter())
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    attributes.push(("state".to_owned(), json!(run.trial.state.name())));
    if let Some(reason) = &run.reason {
        attributes.push(("reason".to_owned(), json!(reason)));
    }
    for (key, value) in attributes {
        // A metric may be called as one of our own keys.
        sqlx::query("insert or ignore into trial_user_attributes (trial_id, \"key\", value_json) values (?, ?, ?)")
            .bind(id)
            .bind(key)
            .bind(value.to_string())
            .execute(&mut *connection)
            .await?;
    }
    if let Some(violations) = metrics.and_then(|metrics| violations(study, metrics)) {
        sqlx::query("insert into trial_system_attributes (trial_id, \"key\", value_json) values (?, 'constraints', ?)")
            .bind(id)
            .bind(json!(violations).to_string())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Every objective's value, where the trial is complete with all of them.
fn objective_values(study: &StudyOverview, trial: &Trial) -> Option<Vec<f64>> {
    let TrialState::Complete { metrics } = &trial.state else {
        return None;
    };
    study
        .objectives
        .iter()
        .map(|objective| metrics.value(&objective.metric))
        .collect()
}

/// Amounts by which each constraint is broken: at most 0 where it is kept, as Optuna has it.
fn violations(study: &StudyOverview, metrics: &Metrics) -> Option<Vec<f64>> {
    if study.constraints.is_empty() {
        return None;
    }
    let violation = |constraint: &Constraint| {
        let value = metrics.value(&constraint.metric)?;
        Some(match constraint.bound {
            Bound::AtMost(limit) => value - limit,
            Bound::AtLeast(limit) => limit - value,
        })
    };
    study.constraints.iter().map(violation).collect()
}

/// Optuna's name of a state; a complete trial without all objectives would not load as complete.
fn state(trial: &Trial, has_values: bool) -> &'static str {
    match trial.state {
        TrialState::Waiting => "WAITING",
        TrialState::Running => "RUNNING",
        TrialState::Complete { .. } if has_values => "COMPLETE",
        TrialState::Pruned { .. } | TrialState::Skipped { .. } => "PRUNED",
        TrialState::Complete { .. } | TrialState::Failed { .. } => "FAIL",
    }
}

/// A moment such as `2025-11-20T10:50:00.123Z` as SQLAlchemy stores it.
fn datetime(moment: &str) -> String {
    let text = moment.trim_end_matches('Z').replace('T', " ");
    match text.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<6}"),
        None => format!("{text}.000000"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_microseconds() {
        assert_eq!(datetime("2025-11-20T10:50:00.123Z"), "2025-11-20 10:50:00.123000");
        assert_eq!(datetime("2025-11-20T10:50:00Z"), "2025-11-20 10:50:00.000000");
    }
}
