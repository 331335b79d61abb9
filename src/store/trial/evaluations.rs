//! Evaluations of trials on the held-out set.

use std::collections::HashMap;

use super::trial_id::TrialId;
use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{EvaluationRecord, Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// A row of the table `evaluation`.
#[derive(sqlx::FromRow)]
struct EvaluationRow {
    trial_id: i64,
    step: i64,
    tokens: i64,
    loss: Option<f64>,
    accuracy: Option<f64>,
    target_tokens: i64,
    seconds: Option<f64>,
}

/// Evaluations of trials on the held-out set.
#[derive(Clone, Copy, Debug)]
pub struct Evaluations<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Evaluations<'_> {
    /// Records an evaluation of a running trial. One after the same step replaces it.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        evaluation: &EvaluationRecord,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        sqlx::query(
            "insert or replace into evaluation (trial_id, step, tokens, loss, accuracy, target_tokens, seconds)
             values (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(trial.0)
        .bind(to_i64(evaluation.step)?)
        .bind(to_i64(evaluation.tokens)?)
        .bind(finite(evaluation.loss))
        .bind(finite(evaluation.accuracy))
        .bind(to_i64(evaluation.target_tokens)?)
        .bind(finite(evaluation.seconds))
        .execute(&self.store.pool)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// Evaluations on the held-out set during a trial, in order. Numbers that were not finite come back as NaN.
    pub async fn of(self, study: StudyId, number: TrialNumber) -> Result<Vec<EvaluationRecord>, StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        self.of_id(trial).await
    }

    /// Evaluations during a trial, in order.
    pub(super) async fn of_id(self, trial: TrialId) -> Result<Vec<EvaluationRecord>, StoreError> {
        let rows: Vec<EvaluationRow> = sqlx::query_as(
            "select trial_id, step, tokens, loss, accuracy, target_tokens, seconds
             from evaluation where trial_id = ? order by step",
        )
        .bind(trial.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows.into_iter().map(EvaluationRow::into_record).collect())
    }

    /// Evaluations of all trials of a study in order of step, by `trial.id`.
    pub(super) async fn by_id(self, study: StudyId) -> Result<HashMap<i64, Vec<EvaluationRecord>>, StoreError> {
        let rows: Vec<EvaluationRow> = sqlx::query_as(
            "select trial_id, step, tokens, loss, accuracy, target_tokens, seconds from evaluation
             where trial_id in (select id from trial where study_id = ?) order by trial_id, step",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let mut evaluations: HashMap<i64, Vec<EvaluationRecord>> = HashMap::new();
        for row in rows {
            let of_trial = evaluations.entry(row.trial_id).or_default();
            of_trial.push(row.into_record());
        }
        Ok(evaluations)
    }
}

impl EvaluationRow {
    fn into_record(self) -> EvaluationRecord {
        EvaluationRecord {
            step: to_u64(self.step),
            tokens: to_u64(self.tokens),
            loss: self.loss.unwrap_or(f64::NAN),
            accuracy: self.accuracy.unwrap_or(f64::NAN),
            target_tokens: to_u64(self.target_tokens),
            seconds: self.seconds.unwrap_or(f64::NAN),
        }
    }
}
