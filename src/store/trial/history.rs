//! Trials of a study, read back as samplers, reports and exports know them.

use std::collections::{BTreeMap, HashMap};

use super::state::StateColumns;
use super::trial_id::TrialId;
use crate::store::row::to_u64;
use crate::store::{EvaluationRecord, Store, StoreError, StudyId};
use peft_tune_core::study::{Confirmations, Metrics, Params, Trial, TrialNumber, with_confirmed};

/// A trial with its times, its recipe and its evaluations.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialRun {
    pub trial: Trial,
    pub attempt: u64,
    /// Start in UTC, ISO 8601.
    pub started_at: String,
    /// End in UTC, ISO 8601.
    pub ended_at: Option<String>,
    pub wall_s: Option<f64>,
    /// Start in seconds since 1970.
    pub started_s: f64,
    /// End in seconds since 1970.
    pub ended_s: Option<f64>,
    /// Reason of the trial's end, in the database's words.
    pub reason: Option<String>,
    /// Recipe of the trial; `None` with a command backend, and where the params made none.
    pub recipe: Option<serde_json::Value>,
    /// Evaluations on the held-out set, in order of step.
    pub evaluations: Vec<EvaluationRecord>,
}

/// Times of a trial.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct TrialTimes {
    #[sqlx(try_from = "i64")]
    pub number: TrialNumber,
    /// Number of the attempt, from 1; a repeated trial has a higher one.
    #[sqlx(try_from = "i64")]
    pub attempt: u64,
    /// Phase that the trial is in, or in which it was stopped.
    pub phase: Option<String>,
    /// Start in UTC, ISO 8601.
    pub started_at: String,
    /// End in UTC, ISO 8601.
    pub ended_at: Option<String>,
    /// Wall-clock seconds.
    pub wall_s: Option<f64>,
    /// Seconds since the trial started, by this machine's clock.
    pub since_start_s: f64,
}

/// Trials of studies, read back.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    pub(in crate::store) store: &'a Store,
}

#[derive(sqlx::FromRow)]
struct RunRow {
    id: i64,
    number: i64,
    attempt: i64,
    reason: Option<String>,
    recipe: Option<String>,
    started_at: String,
    ended_at: Option<String>,
    wall_s: Option<f64>,
    started_s: f64,
    ended_s: Option<f64>,
}

#[derive(sqlx::FromRow)]
struct TrialRow {
    id: i64,
    number: i64,
    state: String,
    reason: Option<String>,
    detail: Option<String>,
}

impl History<'_> {
    /// Metrics that one trial measured; none where it has not finished.
    pub async fn metrics(self, study: StudyId, number: TrialNumber) -> Result<Metrics, StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let rows: Vec<(String, f64)> = sqlx::query_as("select name, value from metric where trial_id = ?")
            .bind(trial.0)
            .fetch_all(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        let mut metrics = Metrics::default();
        for (name, value) in rows {
            metrics.insert(name, value);
        }
        Ok(metrics)
    }

    /// Whether a trial of a study ended without a failure.
    pub async fn has_success(self, study: StudyId) -> Result<bool, StoreError> {
        sqlx::query_scalar("select exists (select 1 from trial where study_id = ? and state in ('complete', 'pruned'))")
            .bind(study.0)
            .fetch_one(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))
    }

    /// Every trial of a study in order of number.
    pub async fn trials(self, study: StudyId) -> Result<Vec<Trial>, StoreError> {
        // One transaction, so that the three statements see the same moment.
        let mut snapshot = self.store.pool.begin().await.map_err(|error| self.store.error(error))?;
        let rows: Vec<TrialRow> =
            sqlx::query_as("select id, number, state, reason, detail from trial where study_id = ? order by number")
                .bind(study.0)
                .fetch_all(&mut *snapshot)
                .await
                .map_err(|error| self.store.error(error))?;
        let params: Vec<(i64, String, String)> = sqlx::query_as(
            "select trial_id, name, json from param where trial_id in (select id from trial where study_id = ?)",
        )
        .bind(study.0)
        .fetch_all(&mut *snapshot)
        .await
        .map_err(|error| self.store.error(error))?;
        let metrics: Vec<(i64, String, f64)> = sqlx::query_as(
            "select trial_id, name, value from metric where trial_id in (select id from trial where study_id = ?)",
        )
        .bind(study.0)
        .fetch_all(&mut *snapshot)
        .await
        .map_err(|error| self.store.error(error))?;
        self.assemble(rows, params, metrics)
    }

    /// Every trial of a study in order of number, with confirmed values in the place of values that were measured once; and
    /// the confirmations. Whoever shows or compares trials reads these, so that all say the same.
    pub async fn confirmed_trials(self, study: StudyId) -> Result<(Vec<Trial>, Confirmations), StoreError> {
        let measured = self.trials(study).await?;
        let confirmed = self.store.repeats().confirmations(study).await?;
        Ok((with_confirmed(&measured, &confirmed), confirmed))
    }

    /// Every trial of a study in order of number, with confirmed values, times, recipe and evaluations.
    pub async fn runs(self, study: StudyId) -> Result<Vec<TrialRun>, StoreError> {
        let (trials, _) = self.confirmed_trials(study).await?;
        let rows: Vec<RunRow> = sqlx::query_as(
            "select id, number, attempt, reason, recipe, started_at, ended_at, wall_s,
                    cast(coalesce(unixepoch(started_at, 'subsec'), 0) as real) as started_s,
                    cast(unixepoch(ended_at, 'subsec') as real) as ended_s
             from trial where study_id = ? order by number",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let mut evaluations = self.store.evaluations().by_id(study).await?;
        let mut runs = Vec::with_capacity(trials.len());
        // A trial that began between the two statements is left out.
        for (trial, row) in trials.into_iter().zip(rows) {
            debug_assert_eq!(trial.number, TrialNumber(to_u64(row.number)));
            runs.push(TrialRun {
                attempt: to_u64(row.attempt),
                started_at: row.started_at,
                ended_at: row.ended_at,
                wall_s: row.wall_s,
                started_s: row.started_s,
                ended_s: row.ended_s,
                reason: row.reason,
                recipe: self.read_recipe(row.recipe.as_deref(), trial.number)?,
                evaluations: evaluations.remove(&row.id).unwrap_or_default(),
                trial,
            });
        }
        Ok(runs)
    }

    /// Recipes of the trials of a study that have one, by number.
    pub async fn recipes(self, study: StudyId) -> Result<BTreeMap<TrialNumber, serde_json::Value>, StoreError> {
        let rows: Vec<(i64, String)> =
            sqlx::query_as("select number, recipe from trial where study_id = ? and recipe is not null")
                .bind(study.0)
                .fetch_all(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        let mut recipes = BTreeMap::new();
        for (number, recipe) in rows {
            let number = TrialNumber(to_u64(number));
            if let Some(recipe) = self.read_recipe(Some(&recipe), number)? {
                recipes.insert(number, recipe);
            }
        }
        Ok(recipes)
    }

    /// Times of the trials of a study, by number.
    pub async fn times(self, study: StudyId) -> Result<Vec<TrialTimes>, StoreError> {
        sqlx::query_as(
            "select number, attempt, phase, started_at, ended_at, wall_s,
                    max(0.0, coalesce((julianday('now') - julianday(started_at)) * 86400.0, 0.0)) as since_start_s
             from trial where study_id = ? order by number",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }

    /// The stored recipe of a trial, where there is one.
    pub(super) fn read_recipe(
        self,
        json: Option<&str>,
        number: TrialNumber,
    ) -> Result<Option<serde_json::Value>, StoreError> {
        let read = |json| self.store.read_json(json, || format!("the recipe of trial {number}"));
        json.map(read).transpose()
    }

    /// One trial, without reading the others.
    pub(super) async fn one_trial(self, id: TrialId) -> Result<Trial, StoreError> {
        let row: TrialRow = sqlx::query_as("select id, number, state, reason, detail from trial where id = ?")
            .bind(id.0)
            .fetch_one(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        let params = sqlx::query_as("select trial_id, name, json from param where trial_id = ?")
            .bind(id.0)
            .fetch_all(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        let metrics = sqlx::query_as("select trial_id, name, value from metric where trial_id = ?")
            .bind(id.0)
            .fetch_all(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        let mut trials = self.assemble(vec![row], params, metrics)?;
        // One row in, one trial out.
        Ok(trials.swap_remove(0))
    }

    fn assemble(
        self,
        rows: Vec<TrialRow>,
        params: Vec<(i64, String, String)>,
        metrics: Vec<(i64, String, f64)>,
    ) -> Result<Vec<Trial>, StoreError> {
        let mut params_of: HashMap<i64, Params> = HashMap::with_capacity(rows.len());
        for (id, name, json) in params {
            let value = self.store.read_json(&json, || format!("param `{name}`"))?;
            params_of.entry(id).or_default().insert(name, value);
        }
        let mut metrics_of: HashMap<i64, Metrics> = HashMap::with_capacity(rows.len());
        for (id, name, value) in metrics {
            metrics_of.entry(id).or_default().insert(name, value);
        }
        rows.into_iter()
            .map(|row| {
                let columns = StateColumns {
                    state: row.state,
                    reason: row.reason,
                    phase: None,
                    detail: row.detail,
                };
                let metrics = metrics_of.remove(&row.id).unwrap_or_default();
                let state = columns.to_state(metrics).map_err(|source| StoreError::Unreadable {
                    path: self.store.path.clone(),
                    what: format!("the outcome of trial {}", row.number),
                    source,
                })?;
                Ok(Trial {
                    number: TrialNumber(to_u64(row.number)),
                    params: params_of.remove(&row.id).unwrap_or_default(),
                    state,
                })
            })
            .collect()
    }
}
