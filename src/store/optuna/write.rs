//! The rows of an Optuna storage: <https://optuna.readthedocs.io/en/stable/reference/generated/optuna.storages.RDBStorage.html>.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::distribution::OptunaParameter;
use crate::store::row::{finite, to_i64};
use crate::store::{Store, StoreError, StudyOverview, TrialRun};
use peft_tune_core::objective::Direction;
use peft_tune_core::study::{Trial, TrialState};

/// Tables and indexes, as Optuna makes them.
const SCHEMA: &str = include_str!("schema.sql");

/// Schema and library that Optuna compares with its own.
const SCHEMA_VERSION: i64 = 12;
const LIBRARY_VERSION: &str = "5.0.0";

impl Store {
    /// Writes a study to a new file that `optuna.load_study(storage="sqlite:///PATH")` opens: directions, distributions,
    /// values, held-out losses as intermediate values, constraints, and everything else as user attributes.
    ///
    /// # Errors
    /// [`StoreError::OptunaExists`] where `path` is taken and `force` is not given, or where writing fails; nothing is
    /// left behind then.
    pub async fn write_optuna(&self, study: &StudyOverview, path: &Path, force: bool) -> Result<(), StoreError> {
        if !force && path.symlink_metadata().is_ok() {
            return Err(StoreError::OptunaExists { path: path.to_owned() });
        }
        let runs = self.trial_runs(study.id).await?;
        let trials: Vec<&Trial> = runs.iter().map(|run| &run.trial).collect();
        let space = self.search_space(study.id).await?;
        let mut parameters = BTreeMap::new();
        for name in trials.iter().flat_map(|trial| trial.params.keys()) {
            if !parameters.contains_key(name) {
                parameters.insert(name.clone(), OptunaParameter::new(name, space.as_ref(), &trials));
            }
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let draft = Draft {
            path: PathBuf::from(name),
        };
        draft.write(study, &runs, &parameters).await?;
        std::fs::rename(&draft.path, path).map_err(|source| StoreError::Io {
            path: path.to_owned(),
            source,
        })
    }
}

/// The file as it is written, which goes where writing fails.
struct Draft {
    path: PathBuf,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already where it was renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Draft {
    async fn write(
        &self,
        study: &StudyOverview,
        runs: &[TrialRun],
        parameters: &BTreeMap<String, OptunaParameter>,
    ) -> Result<(), StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Off)
            .foreign_keys(false);
        let failed = |error| StoreError::from_sqlx(&self.path, error);
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await
            .map_err(failed)?;
        let rows = async {
            let mut transaction = pool.begin().await?;
            sqlx::raw_sql(SCHEMA).execute(&mut *transaction).await?;
            write_study(&mut transaction, study).await?;
            for run in runs {
                write_trial(&mut transaction, study, run, parameters).await?;
            }
            transaction.commit().await
        };
        let written = rows.await;
        pool.close().await;
        written.map_err(failed)
    }
}

async fn write_study(connection: &mut SqliteConnection, study: &StudyOverview) -> Result<(), sqlx::Error> {
    sqlx::query("insert into version_info values (1, ?, ?)")
        .bind(SCHEMA_VERSION)
        .bind(LIBRARY_VERSION)
        .execute(&mut *connection)
        .await?;
    sqlx::query("insert into studies values (1, ?)")
        .bind(&study.name)
        .execute(&mut *connection)
        .await?;
    for (place, objective) in (0i64..).zip(&study.objectives) {
        let direction = match objective.direction {
            Direction::Minimize => "MINIMIZE",
            Direction::Maximize => "MAXIMIZE",
        };
        sqlx::query("insert into study_directions (direction, study_id, objective) values (?, 1, ?)")
            .bind(direction)
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
        "insert into study_system_attributes (study_id, \"key\", value_json) values (1, 'study:metric_names', ?)",
    )
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
        sqlx::query("insert into study_user_attributes (study_id, \"key\", value_json) values (1, ?, ?)")
            .bind(key)
            .bind(value.to_string())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn write_trial(
    connection: &mut SqliteConnection,
    study: &StudyOverview,
    run: &TrialRun,
    parameters: &BTreeMap<String, OptunaParameter>,
) -> Result<(), sqlx::Error> {
    let values = objective_values(study, &run.trial);
    let id: i64 = sqlx::query_scalar(
        "insert into trials (number, study_id, state, datetime_start, datetime_complete) values (?, 1, ?, ?, ?)
         returning trial_id",
    )
    .bind(run.trial.number.0.cast_signed())
    .bind(state(&run.trial, values.is_some()))
    .bind(datetime(&run.started_at))
    .bind(run.ended_at.as_deref().map(datetime))
    .fetch_one(&mut *connection)
    .await?;
    for (place, value) in (0i64..).zip(values.unwrap_or_default()) {
        sqlx::query("insert into trial_values (trial_id, objective, value, value_type) values (?, ?, ?, 'FINITE')")
            .bind(id)
            .bind(place)
            .bind(value)
            .execute(&mut *connection)
            .await?;
    }
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
    write_attributes(connection, id, study, run).await
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

/// By how much each constraint is broken: at most 0 where it is kept, as Optuna has it.
fn violations(study: &StudyOverview, metrics: &peft_tune_core::study::Metrics) -> Option<Vec<f64>> {
    use peft_tune_core::objective::Bound;
    if study.constraints.is_empty() {
        return None;
    }
    let violation = |constraint: &peft_tune_core::objective::Constraint| {
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

/// `2025-11-20T10:50:00.123Z` as SQLAlchemy stores moments.
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
