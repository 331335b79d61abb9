//! The trials of a study, read back as the samplers know them.

use std::collections::HashMap;

use super::row::to_u64;
use super::state::StateColumns;
use super::step::TrialId;
use super::{Store, StoreError, StudyId};
use peft_tune_core::study::{Metrics, Params, Trial, TrialNumber};

#[derive(sqlx::FromRow)]
struct TrialRow {
    id: i64,
    number: i64,
    state: String,
    reason: Option<String>,
    detail: Option<String>,
}

impl Store {
    /// What one trial measured; nothing where it has not finished.
    pub async fn metrics(&self, study: StudyId, number: TrialNumber) -> Result<Metrics, StoreError> {
        let trial = self.trial_id(study, number).await?;
        let rows: Vec<(String, f64)> = sqlx::query_as("select name, value from metric where trial_id = ?")
            .bind(trial.0)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let mut metrics = Metrics::default();
        for (name, value) in rows {
            metrics.insert(name, value);
        }
        Ok(metrics)
    }

    /// Whether a trial of a study ended without a failure.
    pub async fn has_success(&self, study: StudyId) -> Result<bool, StoreError> {
        sqlx::query_scalar("select exists (select 1 from trial where study_id = ? and state in ('complete', 'pruned'))")
            .bind(study.0)
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))
    }

    /// Every trial of a study in order of number.
    pub async fn trials(&self, study: StudyId) -> Result<Vec<Trial>, StoreError> {
        // One transaction, so that the three statements see the same moment.
        let mut snapshot = self.pool.begin().await.map_err(|error| self.error(error))?;
        let rows: Vec<TrialRow> =
            sqlx::query_as("select id, number, state, reason, detail from trial where study_id = ? order by number")
                .bind(study.0)
                .fetch_all(&mut *snapshot)
                .await
                .map_err(|error| self.error(error))?;
        let params: Vec<(i64, String, String)> = sqlx::query_as(
            "select trial_id, name, json from param where trial_id in (select id from trial where study_id = ?)",
        )
        .bind(study.0)
        .fetch_all(&mut *snapshot)
        .await
        .map_err(|error| self.error(error))?;
        let metrics: Vec<(i64, String, f64)> = sqlx::query_as(
            "select trial_id, name, value from metric where trial_id in (select id from trial where study_id = ?)",
        )
        .bind(study.0)
        .fetch_all(&mut *snapshot)
        .await
        .map_err(|error| self.error(error))?;
        self.assemble(rows, params, metrics)
    }

    /// One trial, without reading the others.
    pub(super) async fn one_trial(&self, id: TrialId) -> Result<Trial, StoreError> {
        let row: TrialRow = sqlx::query_as("select id, number, state, reason, detail from trial where id = ?")
            .bind(id.0)
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let params = sqlx::query_as("select trial_id, name, json from param where trial_id = ?")
            .bind(id.0)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let metrics = sqlx::query_as("select trial_id, name, value from metric where trial_id = ?")
            .bind(id.0)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let mut trials = self.assemble(vec![row], params, metrics)?;
        // One row in, one trial out.
        Ok(trials.swap_remove(0))
    }

    fn assemble(
        &self,
        rows: Vec<TrialRow>,
        params: Vec<(i64, String, String)>,
        metrics: Vec<(i64, String, f64)>,
    ) -> Result<Vec<Trial>, StoreError> {
        let mut params_of: HashMap<i64, Params> = HashMap::with_capacity(rows.len());
        for (id, name, json) in params {
            let value = self.read_json(&json, || format!("param `{name}`"))?;
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
                    path: self.path.clone(),
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

    /// Reads a JSON column; `what` names it in the error.
    pub(super) fn read_json<T: serde::de::DeserializeOwned>(
        &self,
        json: &str,
        what: impl FnOnce() -> String,
    ) -> Result<T, StoreError> {
        serde_json::from_str(json).map_err(|source| StoreError::Unreadable {
            path: self.path.clone(),
            what: what(),
            source,
        })
    }
}
