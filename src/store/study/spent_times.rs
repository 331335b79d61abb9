//! Seconds that a study has spent: on its trials, on measuring again, and on confirming the recommendation.

use serde::Serialize;

use crate::store::row::to_u64;
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::objective::{LONGER_TOKENS, REPEAT_WALL_S};
use peft_tune_core::study::TrialNumber;

/// Seconds that the runs of a study took, by what they were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SpentTime {
    /// Seconds of all trials, variants and lost attempts included.
    pub trials_s: f64,
    /// Seconds of repeats of disturbed trials, and of the waits before them.
    pub measuring_again_s: f64,
    /// Seconds of the runs that confirm the recommendation.
    pub confirming_s: f64,
    /// Confirming runs that repeated a trial as it was.
    pub repeats: u64,
    /// Confirming runs that trained longer than the trial.
    pub longer_trainings: u64,
}

impl SpentTime {
    /// Seconds of all runs.
    pub fn total_s(&self) -> f64 {
        self.trials_s + self.measuring_again_s + self.confirming_s
    }
}

/// Seconds that studies and their trials took.
#[derive(Clone, Copy, Debug)]
pub struct SpentTimes<'a> {
    pub(in crate::store) store: &'a Store,
}

impl SpentTimes<'_> {
    /// Seconds that the finished trials of a study took, attempts that were lost, and the runs behind them. Where a trial was
    /// set aside with the last attempt that it lost, those seconds are its own.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn of(self, study: StudyId) -> Result<SpentTime, StoreError> {
        let (trials_s, measuring_again_s, confirming_s, runs, longer): (f64, f64, f64, i64, i64) = sqlx::query_as(
            "select
                (select total(wall_s) from trial where study_id = ?1 and state not in ('waiting', 'running'))
                + (select total(lost_attempt.wall_s) from lost_attempt join trial on trial.id = lost_attempt.trial_id
                   where trial.study_id = ?1
                   and (trial.state in ('waiting', 'running') or lost_attempt.attempt < trial.attempt)),
                (select total(value) from measurement join trial on trial.id = measurement.trial_id
                 where trial.study_id = ?1 and measurement.name = ?2),
                (select total(value) from confirmation_run join trial on trial.id = confirmation_run.trial_id
                 where trial.study_id = ?1 and confirmation_run.name = ?2),
                (select count(*) from confirmation_run join trial on trial.id = confirmation_run.trial_id
                 where trial.study_id = ?1 and confirmation_run.name = ?2),
                (select count(*) from confirmation_run join trial on trial.id = confirmation_run.trial_id
                 where trial.study_id = ?1 and confirmation_run.name = ?3)",
        )
        .bind(study.0)
        .bind(REPEAT_WALL_S)
        .bind(LONGER_TOKENS)
        .fetch_one(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let longer_trainings = to_u64(longer);
        Ok(SpentTime {
            trials_s,
            measuring_again_s,
            confirming_s,
            repeats: to_u64(runs).saturating_sub(longer_trainings),
            longer_trainings,
        })
    }

    /// Wall-clock seconds of each finished trial of a study that took time.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn of_trials(self, study: StudyId) -> Result<Vec<(TrialNumber, f64)>, StoreError> {
        let rows: Vec<(i64, f64)> = sqlx::query_as(
            "select number, wall_s from trial
             where study_id = ? and state not in ('waiting', 'running') and wall_s > 0.0 order by number",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let seconds = rows.into_iter();
        Ok(seconds
            .map(|(number, wall_s)| (TrialNumber(to_u64(number)), wall_s))
            .collect())
    }
}
