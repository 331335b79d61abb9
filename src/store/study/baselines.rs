//! Baselines of studies: the trials that their recommendations are compared with.

use crate::store::row::{to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Baselines: the trials that the recommendations of studies are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Baselines<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Baselines<'_> {
    /// Records that a trial is the baseline of its study.
    ///
    /// # Errors
    /// Where the database cannot be written.
    pub async fn record(self, study: StudyId, trial: TrialNumber) -> Result<(), StoreError> {
        sqlx::query("insert or replace into baseline (study_id, trial) values (?, ?)")
            .bind(study.0)
            .bind(to_i64(trial.0)?)
            .execute(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// The baseline of a study; none where it had no such trial.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn of(self, study: StudyId) -> Result<Option<TrialNumber>, StoreError> {
        let number: Option<i64> = sqlx::query_scalar("select trial from baseline where study_id = ?")
            .bind(study.0)
            .fetch_optional(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(number.map(|number| TrialNumber(to_u64(number))))
    }
}
