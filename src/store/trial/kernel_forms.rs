//! Forms of the ops that trials were computed with.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::store::row::to_u64;
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Forms in which a trial's ops ran, by their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct TrialKernels {
    /// Form of the ops, as `--kernels` has it; `fused` is `auto`.
    pub kernels: String,
    /// Fastest kernels that attention ran in on a GPU.
    pub attention: Option<String>,
    /// Whether products of quantized weights took those of adapters along, on a GPU where that was timed to be faster.
    pub longer_sums: bool,
    /// Form that was asked for, where a kernel of it failed.
    pub instead_of: Option<String>,
}

/// The forms of trials, by number.
pub type KernelsOfTrials = BTreeMap<TrialNumber, TrialKernels>;

/// Forms of the ops that trials were computed with.
#[derive(Clone, Copy, Debug)]
pub struct KernelForms<'a> {
    pub(in crate::store) store: &'a Store,
}

impl KernelForms<'_> {
    /// Records the form of the ops that a trial is computed with, and the form in whose place it stands where a kernel of that
    /// failed.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where writing fails: only names of [`peft_tune_kernels::Kernels`] can be written.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        form: &str,
        instead_of: Option<&str>,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        // A trial that is repeated may be computed in another form.
        sqlx::query("insert or replace into trial_kernels (trial_id, kernels, instead_of) values (?, ?, ?)")
            .bind(trial.0)
            .bind(form)
            .bind(instead_of)
            .execute(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// Records in which kernels a trial's attention ran, and whether weights' products took those of adapters along.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where writing fails.
    pub async fn record_ran(
        self,
        study: StudyId,
        number: TrialNumber,
        attention: Option<&str>,
        longer_sums: bool,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        sqlx::query("update trial_kernels set attention = ?, longer_sums = ? where trial_id = ?")
            .bind(attention)
            .bind(longer_sums)
            .bind(trial.0)
            .execute(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// Kernels of each trial of a study of which they are known.
    ///
    /// # Errors
    /// Where reading fails.
    pub async fn of(self, study: StudyId) -> Result<KernelsOfTrials, StoreError> {
        #[derive(sqlx::FromRow)]
        struct Row {
            number: i64,
            #[sqlx(flatten)]
            kernels: TrialKernels,
        }
        let rows: Vec<Row> = sqlx::query_as(
            "select trial.number, kernels, attention, longer_sums, instead_of
             from trial_kernels join trial on trial.id = trial_kernels.trial_id where trial.study_id = ?",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows
            .into_iter()
            .map(|row| (TrialNumber(to_u64(row.number)), row.kernels))
            .collect())
    }

    /// Kernels of the last finished trial of a study that was computed in the place of a form that failed. Repeats meet faults
    /// behind all trials, so that it need not be the last trial of all.
    ///
    /// # Errors
    /// Where reading fails.
    pub async fn safer(self, study: StudyId) -> Result<Option<TrialKernels>, StoreError> {
        sqlx::query_as(
            "select kernels, attention, longer_sums, instead_of
             from trial_kernels join trial on trial.id = trial_kernels.trial_id
             where trial.study_id = ? and state in ('complete', 'pruned') and instead_of is not null
             order by trial.number desc limit 1",
        )
        .bind(study.0)
        .fetch_optional(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }

    /// Name of the form of each trial of a study of which it is known.
    pub async fn forms(self, study: StudyId) -> Result<BTreeMap<TrialNumber, String>, StoreError> {
        let rows: Vec<(i64, String)> = sqlx::query_as(
            "select trial.number, kernels from trial_kernels join trial on trial.id = trial_kernels.trial_id
             where trial.study_id = ?",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let form = |(number, form)| (TrialNumber(to_u64(number)), form);
        Ok(rows.into_iter().map(form).collect())
    }
}
