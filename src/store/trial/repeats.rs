//! Repeats of trials that decide a recommendation, and the confirmations that they give together.

use std::collections::BTreeMap;

use super::measurements::metrics_of_runs;
use super::trial_id::TrialId;
use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::{Confirmations, Confirmed, Metrics, TrialNumber};

/// Name of the metric that says at which step a longer training diverged: the loss of that repeat stands for one that
/// it never had.
pub const LONGER_DIVERGED_STEP: &str = "longer_diverged_step";

/// Repeats of trials, and the confirmations that they give together.
#[derive(Clone, Copy, Debug)]
pub struct Repeats<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Repeats<'_> {
    /// Records one repeat of a trial, with the values that all repeats confirm by now: of it, and of other trials that it
    /// concerns. All or nothing.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        repeat: u64,
        metrics: &Metrics,
        confirmed: &Confirmations,
    ) -> Result<(), StoreError> {
        let mut concerned = Vec::with_capacity(confirmed.len());
        for (number, said) in confirmed {
            concerned.push((self.store.trials().id(study, *number).await?, said));
        }
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        self.write_run(&mut transaction, trial, repeat, metrics).await?;
        for (trial, said) in concerned {
            for (name, one) in said {
                self.write_confirmed(&mut transaction, trial, name, one).await?;
            }
        }
        self.store.commit(transaction).await
    }

    /// Replaces all stored repeats of a trial, and the values that they confirm; all or nothing.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where the database cannot be written.
    pub async fn replace(
        self,
        study: StudyId,
        number: TrialNumber,
        repeats: &[Metrics],
        confirmed: &BTreeMap<String, Confirmed>,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        for emptied in [
            "delete from confirmation_run where trial_id = ?",
            "delete from confirmation where trial_id = ?",
        ] {
            sqlx::query(emptied)
                .bind(trial.0)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        for (repeat, metrics) in (1..).zip(repeats) {
            self.write_run(&mut transaction, trial, repeat, metrics).await?;
        }
        for (name, one) in confirmed {
            self.write_confirmed(&mut transaction, trial, name, one).await?;
        }
        self.store.commit(transaction).await
    }

    async fn write_run(
        self,
        connection: &mut sqlx::SqliteConnection,
        trial: TrialId,
        repeat: u64,
        metrics: &Metrics,
    ) -> Result<(), StoreError> {
        for (name, value) in metrics.iter() {
            sqlx::query("insert or replace into confirmation_run (trial_id, repeat, name, value) values (?, ?, ?, ?)")
                .bind(trial.0)
                .bind(to_i64(repeat)?)
                .bind(name)
                .bind(value)
                .execute(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn write_confirmed(
        self,
        connection: &mut sqlx::SqliteConnection,
        trial: TrialId,
        name: &str,
        one: &Confirmed,
    ) -> Result<(), StoreError> {
        let (Some(value), Some(interval)) = (finite(one.value), finite(one.interval)) else {
            return Ok(());
        };
        sqlx::query(
            "insert or replace into confirmation (trial_id, name, value, interval, repeats) values (?, ?, ?, ?, ?)",
        )
        .bind(trial.0)
        .bind(name)
        .bind(value)
        .bind(interval)
        .bind(to_i64(one.repeats)?)
        .execute(connection)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// Metrics of every repeat of a study's trials, in order of repeat.
    pub async fn of(self, study: StudyId) -> Result<BTreeMap<TrialNumber, Vec<Metrics>>, StoreError> {
        let rows: Vec<(i64, i64, String, f64)> = sqlx::query_as(
            "select number, repeat, name, value from confirmation_run join trial on trial.id = confirmation_run.trial_id
             where trial.study_id = ? order by number, repeat, name",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(metrics_of_runs(rows))
    }

    /// Values that the repeats of a study's trials confirm; trials that were not repeated are absent.
    pub async fn confirmations(self, study: StudyId) -> Result<Confirmations, StoreError> {
        let rows: Vec<(i64, String, f64, f64, i64)> = sqlx::query_as(
            "select number, name, value, interval, repeats from confirmation
             join trial on trial.id = confirmation.trial_id where trial.study_id = ?",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let mut confirmations = Confirmations::new();
        for (number, name, value, interval, repeats) in rows {
            let confirmed = Confirmed {
                value,
                interval,
                repeats: to_u64(repeats),
            };
            let of_trial = confirmations.entry(TrialNumber(to_u64(number))).or_default();
            of_trial.insert(name, confirmed);
        }
        Ok(confirmations)
    }
}
