//! When trials ran, whether anything changed, and who runs a study: what live pages and reports ask for.

use std::time::SystemTime;

use super::lock::{is_held, lock_path};
use super::row::to_u64;
use super::{EvaluationRecord, Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// When a trial ran.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct TrialTimes {
    #[sqlx(try_from = "i64")]
    pub number: TrialNumber,
    /// From 1; a repeated trial has a higher one.
    #[sqlx(try_from = "i64")]
    pub attempt: u64,
    /// Phase it is in, or in which it was stopped.
    pub phase: Option<String>,
    /// UTC, ISO 8601.
    pub started_at: String,
    /// UTC, ISO 8601.
    pub ended_at: Option<String>,
    /// Wall-clock seconds.
    pub wall_s: Option<f64>,
    /// Seconds since it started, by this machine's clock.
    pub since_start_s: f64,
}

/// The process that runs a study, as its lock names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner {
    pub process: u32,
    pub since: SystemTime,
}

impl Store {
    /// When the trials of a study ran, by number.
    pub async fn trial_times(&self, study: StudyId) -> Result<Vec<TrialTimes>, StoreError> {
        sqlx::query_as(
            "select number, attempt, phase, started_at, ended_at, wall_s,
                    max(0.0, coalesce((julianday('now') - julianday(started_at)) * 86400.0, 0.0)) as since_start_s
             from trial where study_id = ? order by number",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))
    }

    /// What the trials of a study inherited, by trial: part (`cost`, `loss`) or metric, and source.
    pub async fn all_inherited(&self, study: StudyId) -> Result<Vec<(TrialNumber, String, TrialNumber)>, StoreError> {
        let rows: Vec<(i64, String, i64)> = sqlx::query_as(
            "select trial.number, part, source.number
             from (
                 select trial_id, part, source_id from inheritance
                 union all
                 select trial_id, metric, source_id from metric_inheritance
             ) as taken
             join trial on trial.id = taken.trial_id
             join trial as source on source.id = taken.source_id
             where trial.study_id = ? order by trial.number, part",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let number = |number| TrialNumber(to_u64(number));
        Ok(rows
            .into_iter()
            .map(|(trial, part, source)| (number(trial), part, number(source)))
            .collect())
    }

    /// The text of a study's file, as the search that began it read it.
    pub async fn space_text(&self, study: StudyId) -> Result<String, StoreError> {
        sqlx::query_scalar("select space_text from study where id = ?")
            .bind(study.0)
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))
    }

    /// The settings that define a study, as the search that began it stored them: an object, or null where the definition is of
    /// another form, as a file from someone else may have it.
    pub async fn study_settings(&self, study: StudyId) -> Result<serde_json::Value, StoreError> {
        let definition: String = sqlx::query_scalar("select definition from study where id = ?")
            .bind(study.0)
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let mut definition: serde_json::Value =
            self.read_json(&definition, || "the definition of the study".to_owned())?;
        let settings = definition.get_mut("settings").filter(|settings| settings.is_object());
        Ok(settings.map(serde_json::Value::take).unwrap_or_default())
    }

    /// A number that changes when another process (or another connection) has written to the database.
    pub async fn change_mark(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar("pragma data_version")
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))
    }

    /// The process that the study's lock names. A killed process leaves its lock file: ask the system whether it lives.
    pub fn runner(&self, study: StudyId) -> Option<Runner> {
        let path = lock_path(&self.path, study.0);
        let process = std::fs::read_to_string(&path).ok()?.parse().ok()?;
        let since = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        Some(Runner { process, since })
    }

    /// The process that runs the study now: its lock is held, so it lives.
    pub fn live_runner(&self, study: StudyId) -> Option<Runner> {
        is_held(&lock_path(&self.path, study.0)).then(|| self.runner(study))?
    }

    /// Evaluations on the held-out set during a trial, in order. Numbers that were not finite come back as NaN.
    pub async fn evaluations_of(
        &self,
        study: StudyId,
        number: TrialNumber,
    ) -> Result<Vec<EvaluationRecord>, StoreError> {
        let trial = self.trial_id(study, number).await?;
        self.evaluations(trial.0).await
    }
}
