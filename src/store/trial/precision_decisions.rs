//! Decisions of trials on their precision while they trained.

use serde::Serialize;

use super::trial_id::TrialId;
use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// One decision of an adaptive schedule of the precision, or the switch of a fixed one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrecisionRecord {
    /// Step of the training phase at whose end it was decided.
    pub step: u64,
    /// Precision of the steps from the next one on.
    pub precision: String,
    /// Cause of the decision: `schedule`, `noise`, `signal`, `undecided` or `overflows`.
    pub cause: String,
    /// Noise scale of the gradients in target tokens.
    pub noise_scale: Option<f64>,
    /// Mean target tokens of the steps that decided.
    pub step_targets: f64,
    /// Deciding steps whose gradients overflowed.
    pub overflows: u64,
}

#[derive(sqlx::FromRow)]
struct PrecisionRow {
    step: i64,
    precision: String,
    cause: String,
    noise_scale: Option<f64>,
    step_targets: f64,
    overflows: i64,
}

/// Decisions of trials on their precision.
#[derive(Clone, Copy, Debug)]
pub struct PrecisionDecisions<'a> {
    pub(in crate::store) store: &'a Store,
}

impl PrecisionDecisions<'_> {
    /// Records a decision of a running trial. One after the same step replaces it.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where writing fails.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        decision: &PrecisionRecord,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        sqlx::query(
            "insert or replace into precision_decision
                 (trial_id, step, precision, cause, noise_scale, step_targets, overflows)
             values (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(trial.0)
        .bind(to_i64(decision.step)?)
        .bind(&decision.precision)
        .bind(&decision.cause)
        .bind(decision.noise_scale.and_then(finite))
        .bind(decision.step_targets)
        .bind(to_i64(decision.overflows)?)
        .execute(&self.store.pool)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// The decisions of a trial, in order.
    pub(super) async fn of_id(self, trial: TrialId) -> Result<Vec<PrecisionRecord>, StoreError> {
        let rows: Vec<PrecisionRow> = sqlx::query_as(
            "select step, precision, cause, noise_scale, step_targets, overflows
             from precision_decision where trial_id = ? order by step",
        )
        .bind(trial.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows.into_iter().map(PrecisionRow::into_record).collect())
    }
}

impl PrecisionRow {
    fn into_record(self) -> PrecisionRecord {
        PrecisionRecord {
            step: to_u64(self.step),
            precision: self.precision,
            cause: self.cause,
            noise_scale: self.noise_scale,
            step_targets: self.step_targets,
            overflows: to_u64(self.overflows),
        }
    }
}
