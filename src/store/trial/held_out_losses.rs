//! Losses of the held-out rows of the best trainings so far.

use crate::store::row::to_u64;
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Losses of a training on the held-out rows, in the order of the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOutRecord {
    /// Target tokens of each row.
    pub target_tokens: Vec<usize>,
    /// Cross-entropy summed over the target tokens of each row, in nats.
    pub losses: Vec<f32>,
}

#[derive(sqlx::FromRow)]
struct HeldOutRow {
    number: i64,
    target_tokens: String,
    losses: String,
}

/// Losses of the held-out rows of the best trainings.
#[derive(Clone, Copy, Debug)]
pub struct HeldOutLosses<'a> {
    pub(in crate::store) store: &'a Store,
}

impl HeldOutLosses<'_> {
    /// Records the losses of a trial, and deletes the losses of the trial in whose place it comes.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where writing fails.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        instead_of: Option<TrialNumber>,
        record: &HeldOutRecord,
    ) -> Result<(), StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        if let Some(instead_of) = instead_of {
            let old = self.store.trials().id(study, instead_of).await?;
            sqlx::query("delete from held_out_losses where trial_id = ?")
                .bind(old.0)
                .execute(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        sqlx::query("insert or replace into held_out_losses (trial_id, target_tokens, losses) values (?, ?, ?)")
            .bind(trial.0)
            .bind(to_json(&record.target_tokens)?)
            .bind(to_json(&record.losses)?)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Losses of all trials of a study of which they are stored, by number.
    ///
    /// # Errors
    /// Where reading fails, or stored losses are no JSON.
    pub async fn of(self, study: StudyId) -> Result<Vec<(TrialNumber, HeldOutRecord)>, StoreError> {
        let rows: Vec<HeldOutRow> = sqlx::query_as(
            "select trial.number, target_tokens, losses
             from held_out_losses join trial on trial.id = held_out_losses.trial_id
             where trial.study_id = ? order by trial.number",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let read = |row: HeldOutRow| {
            let number = TrialNumber(to_u64(row.number));
            let record = row.into_record().map_err(|source| StoreError::Unreadable {
                path: self.store.path.clone(),
                what: format!("`held_out_losses` of trial {number}"),
                source,
            });
            record.map(|record| (number, record))
        };
        rows.into_iter().map(read).collect()
    }
}

impl HeldOutRow {
    fn into_record(self) -> Result<HeldOutRecord, serde_json::Error> {
        Ok(HeldOutRecord {
            target_tokens: serde_json::from_str(&self.target_tokens)?,
            losses: serde_json::from_str(&self.losses)?,
        })
    }
}

fn to_json(values: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(values).map_err(|source| StoreError::Unwritable {
        what: "the losses of held-out rows",
        source,
    })
}
