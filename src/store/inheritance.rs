//! Values that a trial inherited from another trial of its study.

use std::collections::BTreeMap;

use super::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Trials that took their loss over and measured a cost at most, each with the training that it is a variant of.
pub type Variants = BTreeMap<TrialNumber, TrialNumber>;

impl Store {
    /// Records that a trial inherited `part` (`cost` or `loss`) from `source`.
    pub async fn record_inherited(
        &self,
        study: StudyId,
        number: TrialNumber,
        part: &str,
        source: TrialNumber,
    ) -> Result<(), StoreError> {
        let trial = self.trial_id(study, number).await?;
        let source = self.trial_id(study, source).await?;
        // A trial that is repeated may inherit again.
        sqlx::query("insert or replace into inheritance (trial_id, part, source_id) values (?, ?, ?)")
            .bind(trial.0)
            .bind(part)
            .bind(source.0)
            .execute(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// The trials that took their cost over from one which then lost its attempt, and has not finished yet.
    pub async fn costs_from_unfinished(&self, study: StudyId) -> Result<Vec<TrialNumber>, StoreError> {
        let numbers: Vec<i64> = sqlx::query_scalar(
            "select trial.number
             from inheritance
             join trial on trial.id = inheritance.trial_id
             join trial as source on source.id = inheritance.source_id
             where trial.study_id = ? and part = 'cost' and source.state in ('waiting', 'running')",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(numbers
            .into_iter()
            .map(|number| TrialNumber(number.unsigned_abs()))
            .collect())
    }

    /// A study's variants: trials that took their loss over, each with the training that measured it.
    pub async fn variants(&self, study: StudyId) -> Result<Variants, StoreError> {
        let inherited = self.all_inherited(study).await?.into_iter();
        let of_loss = inherited.filter(|(_, part, _)| part == "loss");
        Ok(of_loss.map(|(number, _, source)| (number, source)).collect())
    }

    /// What a trial inherited: part (`cost` or `loss`) or metric of a command, and source.
    pub async fn inherited(
        &self,
        study: StudyId,
        number: TrialNumber,
    ) -> Result<Vec<(String, TrialNumber)>, StoreError> {
        let all = self.all_inherited(study).await?.into_iter();
        Ok(all
            .filter(|(trial, ..)| *trial == number)
            .map(|(_, part, source)| (part, source))
            .collect())
    }
}
