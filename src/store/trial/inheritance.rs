//! Values that a trial inherited from another trial of its study.

use std::collections::BTreeMap;

use crate::store::row::to_u64;
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Trials that took their loss over and measured a cost at most, each with the training that it is a variant of.
pub type Variants = BTreeMap<TrialNumber, TrialNumber>;

/// A value that a trial took over from another trial of its study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InheritedValue {
    pub trial: TrialNumber,
    /// `cost`, `loss`, or a metric of a command.
    pub part: String,
    pub source: TrialNumber,
}

impl InheritedValue {
    /// Name of the part that is what a recipe costs.
    pub const COST: &str = "cost";
    /// Name of the part that is what a recipe learns.
    pub const LOSS: &str = "loss";

    /// Whether the trial took its cost over.
    pub fn is_cost(&self) -> bool {
        self.part == Self::COST
    }

    /// The variants among the trials that took these values over.
    pub fn variants(values: &[Self]) -> Variants {
        let of_loss = values.iter().filter(|value| value.part == Self::LOSS);
        of_loss.map(|value| (value.trial, value.source)).collect()
    }
}

/// Values that trials inherited from other trials of their studies.
#[derive(Clone, Copy, Debug)]
pub struct Inheritance<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Inheritance<'_> {
    /// Records that a trial inherited `part`, [`InheritedValue::COST`] or [`InheritedValue::LOSS`], from `source`.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        part: &str,
        source: TrialNumber,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let source = self.store.trials().id(study, source).await?;
        // A trial that is repeated may inherit again.
        sqlx::query("insert or replace into inheritance (trial_id, part, source_id) values (?, ?, ?)")
            .bind(trial.0)
            .bind(part)
            .bind(source.0)
            .execute(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// Records that a command's trial took the value of `metric` over from `source`.
    pub async fn record_metric(
        self,
        study: StudyId,
        number: TrialNumber,
        metric: &str,
        source: TrialNumber,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let source = self.store.trials().id(study, source).await?;
        sqlx::query("insert or replace into metric_inheritance (trial_id, metric, source_id) values (?, ?, ?)")
            .bind(trial.0)
            .bind(metric)
            .bind(source.0)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Values that the trials of a study inherited, by trial and part.
    pub async fn all(self, study: StudyId) -> Result<Vec<InheritedValue>, StoreError> {
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
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let number = |number| TrialNumber(to_u64(number));
        let value = |(trial, part, source)| InheritedValue {
            trial: number(trial),
            part,
            source: number(source),
        };
        Ok(rows.into_iter().map(value).collect())
    }

    /// Trials that took their cost over from a trial which then lost its attempt, and has not finished yet.
    pub async fn costs_from_unfinished(self, study: StudyId) -> Result<Vec<TrialNumber>, StoreError> {
        let numbers: Vec<i64> = sqlx::query_scalar(
            "select trial.number
             from inheritance
             join trial on trial.id = inheritance.trial_id
             join trial as source on source.id = inheritance.source_id
             where trial.study_id = ? and part = 'cost' and source.state in ('waiting', 'running')",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(numbers
            .into_iter()
            .map(|number| TrialNumber(number.unsigned_abs()))
            .collect())
    }

    /// Variants of a study: trials that took their loss over, each with the training that measured it.
    pub async fn variants(self, study: StudyId) -> Result<Variants, StoreError> {
        Ok(InheritedValue::variants(&self.all(study).await?))
    }

    /// Values that a trial inherited, by part.
    pub async fn of(self, study: StudyId, number: TrialNumber) -> Result<Vec<InheritedValue>, StoreError> {
        let all = self.all(study).await?.into_iter();
        Ok(all.filter(|value| value.trial == number).collect())
    }
}
