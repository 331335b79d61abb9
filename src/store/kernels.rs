//! Which form of the ops trials were measured with.

use std::collections::BTreeMap;

use super::row::to_u64;
use super::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

impl Store {
    /// Records the form of the ops that a trial is computed with, by its name on the command line.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where writing fails: the form is `fused`, `reference` or `graphs`.
    pub async fn record_kernels(&self, study: StudyId, number: TrialNumber, form: &str) -> Result<(), StoreError> {
        let trial = self.trial_id(study, number).await?;
        // A trial that is repeated may be computed in another form.
        sqlx::query("insert or replace into trial_kernels (trial_id, kernels) values (?, ?)")
            .bind(trial.0)
            .bind(form)
            .execute(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// The form of the ops of each trial of a study of which it is known.
    pub async fn kernels(&self, study: StudyId) -> Result<BTreeMap<TrialNumber, String>, StoreError> {
        let rows: Vec<(i64, String)> = sqlx::query_as(
            "select trial.number, kernels from trial_kernels join trial on trial.id = trial_kernels.trial_id
             where trial.study_id = ?",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let form = |(number, form)| (TrialNumber(to_u64(number)), form);
        Ok(rows.into_iter().map(form).collect())
    }
}
