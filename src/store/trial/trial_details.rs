//! One trial in depth, as `show STUDY --trial N` prints it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::store::row::to_u64;
use crate::store::{EvaluationRecord, InheritedValue, PredictionRecord, Store, StoreError, StudyId};
use peft_tune_core::study::{Confirmed, Stop, Trial, TrialNumber, with_confirmed};

/// A trial with everything about it but its single steps.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialDetail {
    /// The trial with confirmed values in the place of values that were measured once.
    pub trial: Trial,
    /// Attempt that the values are of, from 1.
    pub attempt: u64,
    /// Phase that the trial is in, or in which it was stopped.
    pub phase: Option<String>,
    /// The recipe as it was stored: a newer version may have added settings since.
    /// `None` with a command backend, and where the params made none.
    pub recipe: Option<serde_json::Value>,
    /// Start in UTC, ISO 8601.
    pub started_at: String,
    /// End in UTC, ISO 8601.
    pub ended_at: Option<String>,
    pub wall_s: Option<f64>,
    pub phases: Vec<PhaseSteps>,
    pub evaluations: Vec<EvaluationRecord>,
    /// Decisions on the precision on the way.
    pub precisions: Vec<crate::store::PrecisionRecord>,
    /// Metrics that the trial was expected to measure.
    pub predictions: Vec<PredictionRecord>,
    /// Stop before the trial's end, if it was stopped.
    pub stop: Option<Stop>,
    /// Values that the trial took over, by part.
    pub inherited: Vec<InheritedValue>,
    /// Forms of the ops that the trial was computed with; absent where they are not known.
    pub kernels: Option<crate::store::TrialKernels>,
    /// Earlier attempts that were lost with their process.
    pub lost: Vec<crate::store::LostAttempt>,
    /// Values that repeats confirmed, by metric.
    pub confirmed: BTreeMap<String, Confirmed>,
}

/// Sums over the steps of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, sqlx::FromRow)]
pub struct PhaseSteps {
    pub phase: String,
    pub steps: i64,
    /// Training loss of the first step, in nats per target token.
    pub first_loss: Option<f64>,
    /// Training loss of the last step, in nats per target token.
    pub last_loss: Option<f64>,
    pub tokens: i64,
    /// Seconds of all parts of the steps.
    pub total_s: f64,
    pub data_s: f64,
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
}

#[derive(sqlx::FromRow)]
struct DetailRow {
    id: i64,
    attempt: i64,
    phase: Option<String>,
    recipe: Option<String>,
    started_at: String,
    ended_at: Option<String>,
    wall_s: Option<f64>,
}

/// Trials with everything about them but their single steps.
#[derive(Clone, Copy, Debug)]
pub struct TrialDetails<'a> {
    pub(in crate::store) store: &'a Store,
}

impl TrialDetails<'_> {
    /// One trial with everything about it but its single steps.
    pub async fn of(self, study: StudyId, number: TrialNumber) -> Result<TrialDetail, StoreError> {
        let id = self.store.trials().id(study, number).await?;
        let measured = self.store.history().one_trial(id).await?;
        let confirmed = self
            .store
            .repeats()
            .confirmations(study)
            .await?
            .remove(&number)
            .unwrap_or_default();
        let mut counted = with_confirmed(&[measured], &[(number, confirmed.clone())].into());
        let row: DetailRow =
            sqlx::query_as("select id, attempt, phase, recipe, started_at, ended_at, wall_s from trial where id = ?")
                .bind(id.0)
                .fetch_one(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        Ok(TrialDetail {
            // One trial in, one out.
            trial: counted.swap_remove(0),
            attempt: to_u64(row.attempt),
            phase: row.phase,
            recipe: self.store.history().read_recipe(row.recipe.as_deref(), number)?,
            started_at: row.started_at,
            ended_at: row.ended_at,
            wall_s: row.wall_s,
            phases: self.phases(row.id).await?,
            evaluations: self.store.evaluations().of_id(id).await?,
            precisions: self.store.precision_decisions().of_id(id).await?,
            predictions: self.store.predictions().of(study, number).await?,
            stop: self.store.stops().of(study, number).await?,
            inherited: self.store.inheritance().of(study, number).await?,
            kernels: self.store.kernel_forms().of(study).await?.remove(&number),
            lost: self.store.lost_attempts().of(study, number).await?,
            confirmed,
        })
    }

    async fn phases(self, trial: i64) -> Result<Vec<PhaseSteps>, StoreError> {
        sqlx::query_as(
            "select phase, count(*) as steps,
                    (select loss from step as s where s.trial_id = step.trial_id and s.phase = step.phase
                     order by s.step limit 1) as first_loss,
                    (select loss from step as s where s.trial_id = step.trial_id and s.phase = step.phase
                     order by s.step desc limit 1) as last_loss,
                    sum(tokens) as tokens, total(total_s) as total_s, total(data_s) as data_s,
                    total(forward_s) as forward_s, total(backward_s) as backward_s, total(optimizer_s) as optimizer_s
             from step where trial_id = ? group by phase",
        )
        .bind(trial)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }
}
