//! When trials ran and what they inherited: what live pages and reports ask for.

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
