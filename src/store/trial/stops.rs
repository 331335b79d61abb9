//! Stops of trials before their end.

use crate::store::row::{to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::{Stop, TrialNumber};

/// Stops of trials before their end.
#[derive(Clone, Copy, Debug)]
pub struct Stops<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Stops<'_> {
    /// Records the stop of a trial before its end.
    pub async fn record(self, study: StudyId, number: TrialNumber, stop: &Stop) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        sqlx::query("insert or replace into stop (trial_id, step, rule, reason) values (?, ?, ?, ?)")
            .bind(trial.0)
            .bind(to_i64(stop.step)?)
            .bind(&stop.rule)
            .bind(&stop.reason)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Stop of a trial before its end, if it was stopped.
    pub async fn of(self, study: StudyId, number: TrialNumber) -> Result<Option<Stop>, StoreError> {
        let row: Option<(i64, String, String)> = sqlx::query_as(
            "select step, rule, stop.reason from stop join trial on trial.id = stop.trial_id
             where trial.study_id = ? and trial.number = ?",
        )
        .bind(study.0)
        .bind(to_i64(number.0)?)
        .fetch_optional(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(row.map(|(step, rule, reason)| Stop {
            step: to_u64(step),
            rule,
            reason,
        }))
    }
}
