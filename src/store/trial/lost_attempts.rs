//! Attempts at a trial that were lost with their process.

use crate::store::row::{finite, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::{FailReason, TrialNumber};

/// An attempt that was lost.
#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct LostAttempt {
    pub attempt: i64,
    pub phase: Option<String>,
    /// Words on the process's end, as far as it is known.
    pub message: String,
    /// Moment of the loss in UTC, ISO 8601.
    pub lost_at: String,
}

/// Attempts at trials that were lost with their processes.
#[derive(Clone, Copy, Debug)]
pub struct LostAttempts<'a> {
    pub(in crate::store) store: &'a Store,
}

impl LostAttempts<'_> {
    /// Notes that the running attempt at a trial was lost. Returns how many the trial has lost by now, this one
    /// included, since it was last reopened; [`super::trials::Trials::release`] hands the trial back.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        reason: &FailReason,
        wall_s: f64,
    ) -> Result<u64, StoreError> {
        let phase = match reason {
            FailReason::Crashed { phase, .. } => Some(phase.name()),
            _ => None,
        };
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        sqlx::query(
            "insert into lost_attempt (trial_id, attempt, phase, message, wall_s)
             values (?1, (select attempt from trial where id = ?1), ?2, ?3, ?4)",
        )
        .bind(trial.0)
        .bind(phase)
        .bind(reason.message())
        .bind(finite(wall_s))
        .execute(&mut *transaction)
        .await
        .map_err(|error| self.store.error(error))?;
        // What was reopened has no seconds (`Trials::reopen_failed`): something else than the trial was to blame until
        // then.
        let lost: i64 = sqlx::query_scalar(
            "select count(*) from lost_attempt where trial_id = ?1
             and id > (select coalesce(max(id), 0) from lost_attempt where trial_id = ?1 and wall_s is null)",
        )
        .bind(trial.0)
        .fetch_one(&mut *transaction)
        .await
        .map_err(|error| self.store.error(error))?;
        self.store.commit(transaction).await?;
        Ok(to_u64(lost))
    }

    /// Number of lost attempts at all trials of a study.
    pub async fn count(self, study: StudyId) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar(
            "select count(*) from lost_attempt where trial_id in (select id from trial where study_id = ?)",
        )
        .bind(study.0)
        .fetch_one(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(to_u64(count))
    }

    /// Lost attempts at a trial, in order.
    pub async fn of(self, study: StudyId, number: TrialNumber) -> Result<Vec<LostAttempt>, StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        sqlx::query_as("select attempt, phase, message, lost_at from lost_attempt where trial_id = ? order by id")
            .bind(trial.0)
            .fetch_all(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))
    }
}
