//! Metrics and parts of the peak memory that trials were expected to measure.

use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// One metric that a trial was expected to measure.
#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct PredictionRecord {
    pub metric: String,
    /// Expected value in the metric's unit.
    pub value: f64,
    /// Relative standard deviation of the value.
    pub deviation: f64,
}

/// Metrics and parts of the peak memory that trials were expected to measure.
#[derive(Clone, Copy, Debug)]
pub struct Predictions<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Predictions<'_> {
    /// Records metrics that a trial is expected to measure. Values that are not finite are left out.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        predictions: &[PredictionRecord],
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        for one in predictions {
            let (Some(value), Some(deviation)) = (finite(one.value), finite(one.deviation)) else {
                continue;
            };
            // A trial that is repeated is predicted again.
            sqlx::query("insert or replace into prediction (trial_id, metric, value, deviation) values (?, ?, ?, ?)")
                .bind(trial.0)
                .bind(&one.metric)
                .bind(value)
                .bind(deviation.max(0.0))
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        self.store.commit(transaction).await
    }

    /// Records the parts that a trial's peak memory is expected to consist of, and their bytes.
    pub async fn record_parts(
        self,
        study: StudyId,
        number: TrialNumber,
        parts: &[(&str, u64)],
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        for (part, bytes) in parts {
            sqlx::query("insert or replace into prediction_part (trial_id, part, bytes) values (?, ?, ?)")
                .bind(trial.0)
                .bind(part)
                .bind(to_i64(*bytes)?)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        self.store.commit(transaction).await
    }

    /// Parts that the peak memory of each trial of a study was expected to consist of, the largest first.
    pub async fn parts(self, study: StudyId) -> Result<Vec<(TrialNumber, String, u64)>, StoreError> {
        let rows: Vec<(i64, String, i64)> = sqlx::query_as(
            "select number, part, bytes from prediction_part join trial on trial.id = prediction_part.trial_id
             where trial.study_id = ? order by number, bytes desc, part",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let one = |(number, part, bytes)| (TrialNumber(to_u64(number)), part, to_u64(bytes));
        Ok(rows.into_iter().map(one).collect())
    }

    /// Metrics that every trial of a study was expected to measure, by trial and name.
    pub async fn all(self, study: StudyId) -> Result<Vec<(TrialNumber, String, f64)>, StoreError> {
        let rows: Vec<(i64, String, f64)> = sqlx::query_as(
            "select number, metric, value from prediction join trial on trial.id = prediction.trial_id
             where trial.study_id = ? order by number, metric",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let one = |(number, metric, value)| (TrialNumber(to_u64(number)), metric, value);
        Ok(rows.into_iter().map(one).collect())
    }

    /// Metrics that a trial was expected to measure, by name.
    pub async fn of(self, study: StudyId, number: TrialNumber) -> Result<Vec<PredictionRecord>, StoreError> {
        sqlx::query_as(
            "select metric, value, deviation from prediction join trial on trial.id = prediction.trial_id
             where trial.study_id = ? and trial.number = ? order by metric",
        )
        .bind(study.0)
        .bind(to_i64(number.0)?)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }
}
