//! Hypervolume that trials were expected to add when they were proposed.

use std::collections::BTreeMap;

use crate::store::row::{finite, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Hypervolume that trials were expected to add when they were proposed.
#[derive(Clone, Copy, Debug)]
pub struct Proposals<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Proposals<'_> {
    /// Records the hypervolume that a trial was expected to add when it was proposed.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        expected_improvement: f64,
    ) -> Result<(), StoreError> {
        let Some(value) = finite(expected_improvement) else {
            return Ok(());
        };
        let trial = self.store.trials().id(study, number).await?;
        sqlx::query("insert or replace into proposal (trial_id, expected_improvement) values (?, ?)")
            .bind(trial.0)
            .bind(value)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Hypervolume that each trial was expected to add when it was proposed; trials of which nothing was expected are absent.
    pub async fn expectations(self, study: StudyId) -> Result<BTreeMap<TrialNumber, f64>, StoreError> {
        let rows: Vec<(i64, f64)> = sqlx::query_as(
            "select number, expected_improvement from proposal join trial on trial.id = proposal.trial_id
             where trial.study_id = ?",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows
            .into_iter()
            .map(|(number, value)| (TrialNumber(to_u64(number)), value))
            .collect())
    }
}
