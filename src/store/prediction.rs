//! Ceilings of machines, and what trials were expected to measure.

use super::row::{finite, to_i64, to_u64};
use super::{MachineRecord, Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Measured ceilings as they are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct CeilingRecord {
    /// Version and kind of build of the program.
    pub build: String,
    pub threads: u64,
    pub memory_bytes_per_s: f64,
    pub wake_s: f64,
    /// JSON of all that was measured.
    pub grids: String,
    /// Share of the speed that may have been lost to other programs; 0 where it was quiet.
    pub disturbed: f64,
}

/// One metric that a trial was expected to measure.
#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct PredictionRecord {
    pub metric: String,
    /// In the metric's unit.
    pub value: f64,
    /// Relative standard deviation.
    pub deviation: f64,
}

impl Store {
    /// Keeps the ceilings of a machine, in place of those that the same build measured before.
    pub async fn record_ceilings(&self, machine: &MachineRecord, record: &CeilingRecord) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let id = self.facts().machine_id(&mut transaction, machine).await?;
        sqlx::query(
            "insert or replace into ceiling (machine_id, build, threads, memory_bytes_per_s, wake_s, grids, disturbed)
             values (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(id)
        .bind(&record.build)
        .bind(to_i64(record.threads)?)
        .bind(finite(record.memory_bytes_per_s).unwrap_or(0.0))
        .bind(finite(record.wake_s).unwrap_or(0.0))
        .bind(&record.grids)
        .bind(finite(record.disturbed).unwrap_or(0.0).clamp(0.0, 1.0))
        .execute(&mut *transaction)
        .await
        .map_err(|error| self.error(error))?;
        self.commit(transaction).await
    }

    /// The JSON of the ceilings that `build` measured on a machine with so many threads, and the share of the speed that may have
    /// been lost to other programs meanwhile.
    pub async fn ceilings(
        &self,
        machine: &MachineRecord,
        build: &str,
        threads: u64,
    ) -> Result<Option<(String, f64)>, StoreError> {
        sqlx::query_as(
            "select grids, disturbed from ceiling join machine on machine.id = ceiling.machine_id
             where host = ? and os = ? and cpu = ? and cpu_cores = ? and memory_bytes = ? and device = ?
               and device_memory_bytes = ? and driver = ? and build = ? and threads = ?",
        )
        .bind(&machine.host)
        .bind(&machine.os)
        .bind(&machine.cpu)
        .bind(to_i64(machine.cpu_cores)?)
        .bind(to_i64(machine.memory_bytes)?)
        .bind(&machine.device)
        .bind(to_i64(machine.device_memory_bytes)?)
        .bind(&machine.driver)
        .bind(build)
        .bind(to_i64(threads)?)
        .fetch_optional(&self.pool)
        .await
        .map_err(|error| self.error(error))
    }

    /// Records what a trial is expected to measure. Values that are not finite are left out.
    pub async fn record_predictions(
        &self,
        study: StudyId,
        number: TrialNumber,
        predictions: &[PredictionRecord],
    ) -> Result<(), StoreError> {
        let trial = self.trial_id(study, number).await?;
        let mut transaction = self.begin().await?;
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
                .map_err(|error| self.error(error))?;
        }
        self.commit(transaction).await
    }

    /// Records what a trial's peak memory is expected to consist of: parts and their bytes.
    pub async fn record_predicted_parts(
        &self,
        study: StudyId,
        number: TrialNumber,
        parts: &[(&str, u64)],
    ) -> Result<(), StoreError> {
        let trial = self.trial_id(study, number).await?;
        let mut transaction = self.begin().await?;
        for (part, bytes) in parts {
            sqlx::query("insert or replace into prediction_part (trial_id, part, bytes) values (?, ?, ?)")
                .bind(trial.0)
                .bind(part)
                .bind(to_i64(*bytes)?)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.error(error))?;
        }
        self.commit(transaction).await
    }

    /// What the peak memory of each trial of a study was expected to consist of, the largest part first.
    pub async fn predicted_parts(&self, study: StudyId) -> Result<Vec<(TrialNumber, String, u64)>, StoreError> {
        let rows: Vec<(i64, String, i64)> = sqlx::query_as(
            "select number, part, bytes from prediction_part join trial on trial.id = prediction_part.trial_id
             where trial.study_id = ? order by number, bytes desc, part",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let one = |(number, part, bytes)| (TrialNumber(to_u64(number)), part, to_u64(bytes));
        Ok(rows.into_iter().map(one).collect())
    }

    /// What every trial of a study was expected to measure, by trial and name of the metric.
    pub async fn all_predictions(&self, study: StudyId) -> Result<Vec<(TrialNumber, String, f64)>, StoreError> {
        let rows: Vec<(i64, String, f64)> = sqlx::query_as(
            "select number, metric, value from prediction join trial on trial.id = prediction.trial_id
             where trial.study_id = ? order by number, metric",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let one = |(number, metric, value)| (TrialNumber(to_u64(number)), metric, value);
        Ok(rows.into_iter().map(one).collect())
    }

    /// What a trial was expected to measure, by name of the metric.
    pub async fn predictions(&self, study: StudyId, number: TrialNumber) -> Result<Vec<PredictionRecord>, StoreError> {
        sqlx::query_as(
            "select metric, value, deviation from prediction join trial on trial.id = prediction.trial_id
             where trial.study_id = ? and trial.number = ? order by metric",
        )
        .bind(study.0)
        .bind(to_i64(number.0)?)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))
    }
}
