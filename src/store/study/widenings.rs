//! Ranges that searches widened: facts beside the study's definition, which has the ranges of its file.

use crate::store::row::{to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::space::{Bounds, Widening};
use peft_tune_core::study::TrialNumber;

/// Ranges that the searches of studies widened.
#[derive(Clone, Copy, Debug)]
pub struct Widenings<'a> {
    pub(in crate::store) store: &'a Store,
}

#[derive(sqlx::FromRow)]
struct WideningRow {
    parameter: String,
    low_before: f64,
    high_before: f64,
    low: f64,
    high: f64,
    #[sqlx(try_from = "i64")]
    best_trial: TrialNumber,
    trainings: i64,
}

impl Widenings<'_> {
    /// Records that a range is searched wider from now on.
    ///
    /// # Errors
    /// Where the database cannot be written.
    pub async fn record(self, study: StudyId, widening: &Widening) -> Result<(), StoreError> {
        let Widening {
            parameter,
            from,
            to,
            best,
            trainings,
        } = widening;
        sqlx::query(
            "insert into range_widening
                 (study_id, position, parameter, low_before, high_before, low, high, best_trial, trainings)
             values (?1, (select count(*) from range_widening where study_id = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .bind(study.0)
        .bind(parameter)
        .bind(from.low)
        .bind(from.high)
        .bind(to.low)
        .bind(to.high)
        .bind(to_i64(best.0)?)
        .bind(to_i64(*trainings)?)
        .execute(&self.store.pool)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// Widenings of a study's ranges, in order.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn of(self, study: StudyId) -> Result<Vec<Widening>, StoreError> {
        let rows: Vec<WideningRow> = sqlx::query_as(
            "select parameter, low_before, high_before, low, high, best_trial, trainings from range_widening
             where study_id = ? order by position",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows.into_iter().map(WideningRow::into_widening).collect())
    }
}

impl WideningRow {
    fn into_widening(self) -> Widening {
        Widening {
            parameter: self.parameter,
            from: Bounds {
                low: self.low_before,
                high: self.high_before,
            },
            to: Bounds {
                low: self.low,
                high: self.high,
            },
            best: self.best_trial,
            trainings: to_u64(self.trainings),
        }
    }
}
