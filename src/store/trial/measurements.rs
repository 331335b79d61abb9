//! Measurements of trials whose profile phase ran more than once.

use std::collections::BTreeMap;

use super::trial_id::TrialId;
use crate::store::row::{finite, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::{Metrics, TrialNumber};

/// Measurements of each trial, in order: the first, then its repeats.
pub type Measurements = BTreeMap<TrialNumber, Vec<Metrics>>;

/// Measurements of trials whose profile phase ran more than once.
#[derive(Clone, Copy, Debug)]
pub struct RepeatedMeasurements<'a> {
    pub(in crate::store) store: &'a Store,
}

impl RepeatedMeasurements<'_> {
    /// Records a repeat of a trial's profile phase beside the measurements before it; the first time, the metrics that the trial
    /// has become the first measurement. All or nothing.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where the database cannot be written.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        first: &Metrics,
        again: &Metrics,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        let last: Option<i64> = sqlx::query_scalar("select max(attempt) from measurement where trial_id = ?")
            .bind(trial.0)
            .fetch_one(&mut *transaction)
            .await
            .map_err(|error| self.store.error(error))?;
        let firsts = first
            .iter()
            .filter(|_| last.is_none())
            .map(|(name, value)| (0, name, value));
        let next = last.map_or(1, |last| last + 1);
        for (attempt, name, value) in firsts.chain(again.iter().map(|(name, value)| (next, name, value))) {
            let Some(value) = finite(value) else { continue };
            sqlx::query("insert into measurement (trial_id, attempt, name, value) values (?, ?, ?, ?)")
                .bind(trial.0)
                .bind(attempt)
                .bind(name)
                .bind(value)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        self.store.commit(transaction).await
    }

    /// Measurements of the trials of a study that were measured again.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn of(self, study: StudyId) -> Result<Measurements, StoreError> {
        let rows: Vec<(i64, i64, String, f64)> = sqlx::query_as(
            "select number, measurement.attempt, name, value from measurement join trial on trial.id = measurement.trial_id
             where trial.study_id = ? order by number, measurement.attempt, name",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(metrics_of_runs(rows))
    }

    /// Puts new metrics of a finished trial's profile phase in the place of the old ones: for the trial, and for the trials that
    /// took its cost over. Returns the numbers of all of them. All or nothing.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where the database cannot be written.
    pub async fn replace_cost(
        self,
        study: StudyId,
        number: TrialNumber,
        old: &Metrics,
        new: &Metrics,
    ) -> Result<Vec<TrialNumber>, StoreError> {
        let source = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        let trials: Vec<(i64, i64)> = sqlx::query_as(
            "select id, number from trial
             where id = ?1 or id in (select trial_id from inheritance where source_id = ?1 and part = 'cost')
             order by number",
        )
        .bind(source.0)
        .fetch_all(&mut *transaction)
        .await
        .map_err(|error| self.store.error(error))?;
        for (trial, _) in &trials {
            for (name, _) in old.iter().filter(|(name, _)| new.value(name).is_none()) {
                sqlx::query("delete from metric where trial_id = ? and name = ?")
                    .bind(trial)
                    .bind(name)
                    .execute(&mut *transaction)
                    .await
                    .map_err(|error| self.store.error(error))?;
            }
            for (name, value) in new.iter() {
                self.replace_metric(&mut transaction, TrialId(*trial), name, value)
                    .await?;
            }
        }
        self.store.commit(transaction).await?;
        Ok(trials
            .into_iter()
            .map(|(_, number)| TrialNumber(to_u64(number)))
            .collect())
    }

    async fn replace_metric(
        self,
        connection: &mut sqlx::SqliteConnection,
        trial: TrialId,
        name: &str,
        value: f64,
    ) -> Result<(), StoreError> {
        let Some(value) = finite(value) else { return Ok(()) };
        sqlx::query("insert or replace into metric (trial_id, name, value) values (?, ?, ?)")
            .bind(trial.0)
            .bind(name)
            .bind(value)
            .execute(connection)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }
}

/// Metrics of each run of each trial, in order of run, from rows of trial, run, name and value.
pub(super) fn metrics_of_runs(rows: Vec<(i64, i64, String, f64)>) -> BTreeMap<TrialNumber, Vec<Metrics>> {
    let mut by_run: BTreeMap<TrialNumber, BTreeMap<i64, Metrics>> = BTreeMap::new();
    for (number, run, name, value) in rows {
        let of_trial = by_run.entry(TrialNumber(to_u64(number))).or_default();
        of_trial.entry(run).or_default().insert(name, value);
    }
    let in_order = by_run.into_iter();
    in_order
        .map(|(number, runs)| (number, runs.into_values().collect()))
        .collect()
}
