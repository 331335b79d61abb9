//! The trials of a study with their times and recipes, for those who take a whole study elsewhere.

use std::collections::HashMap;

use super::row::to_u64;
use super::{EvaluationRecord, Store, StoreError, StudyId};
use peft_tune_core::study::{Trial, TrialNumber};

/// A trial with when it ran and what it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialRun {
    pub trial: Trial,
    pub attempt: u64,
    /// UTC, ISO 8601.
    pub started_at: String,
    /// UTC, ISO 8601.
    pub ended_at: Option<String>,
    pub wall_s: Option<f64>,
    /// The same moments in seconds since 1970.
    pub started_s: f64,
    pub ended_s: Option<f64>,
    /// Why it ended as it did, in the database's words.
    pub reason: Option<String>,
    /// `None` with a command backend, and where the params made none.
    pub recipe: Option<serde_json::Value>,
    /// Evaluations on the held-out set, in order of step.
    pub evaluations: Vec<EvaluationRecord>,
}

#[derive(sqlx::FromRow)]
struct RunRow {
    id: i64,
    number: i64,
    attempt: i64,
    reason: Option<String>,
    recipe: Option<String>,
    started_at: String,
    ended_at: Option<String>,
    wall_s: Option<f64>,
    started_s: f64,
    ended_s: Option<f64>,
}

/// A row of the table `evaluation`.
#[derive(sqlx::FromRow)]
pub(super) struct EvaluationRow {
    trial_id: i64,
    step: i64,
    tokens: i64,
    loss: Option<f64>,
    accuracy: Option<f64>,
    target_tokens: i64,
    seconds: Option<f64>,
}

impl EvaluationRow {
    pub(super) fn into_record(self) -> EvaluationRecord {
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

impl Store {
    /// Every trial of a study in order of number as it counts, with times, recipe and evaluations.
    pub async fn trial_runs(&self, study: StudyId) -> Result<Vec<TrialRun>, StoreError> {
        let (trials, _) = self.confirmed_trials(study).await?;
        let rows: Vec<RunRow> = sqlx::query_as(
            "select id, number, attempt, reason, recipe, started_at, ended_at, wall_s,
                    cast(coalesce(unixepoch(started_at, 'subsec'), 0) as real) as started_s,
                    cast(unixepoch(ended_at, 'subsec') as real) as ended_s
             from trial where study_id = ? order by number",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let mut evaluations = self.all_evaluations(study).await?;
        let mut runs = Vec::with_capacity(trials.len());
        // A trial that began between the two statements is left out.
        for (trial, row) in trials.into_iter().zip(rows) {
            debug_assert_eq!(trial.number, TrialNumber(to_u64(row.number)));
            runs.push(TrialRun {
                attempt: to_u64(row.attempt),
                started_at: row.started_at,
                ended_at: row.ended_at,
                wall_s: row.wall_s,
                started_s: row.started_s,
                ended_s: row.ended_s,
                reason: row.reason,
                recipe: match &row.recipe {
                    Some(recipe) => Some(self.read_json(recipe, || format!("the recipe of trial {}", row.number))?),
                    None => None,
                },
                evaluations: evaluations.remove(&row.id).unwrap_or_default(),
                trial,
            });
        }
        Ok(runs)
    }

    async fn all_evaluations(&self, study: StudyId) -> Result<HashMap<i64, Vec<EvaluationRecord>>, StoreError> {
        let rows: Vec<EvaluationRow> = sqlx::query_as(
            "select trial_id, step, tokens, loss, accuracy, target_tokens, seconds from evaluation
             where trial_id in (select id from trial where study_id = ?) order by trial_id, step",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let mut evaluations: HashMap<i64, Vec<EvaluationRecord>> = HashMap::new();
        for row in rows {
            let of_trial = evaluations.entry(row.trial_id).or_default();
            of_trial.push(row.into_record());
        }
        Ok(evaluations)
    }
}
