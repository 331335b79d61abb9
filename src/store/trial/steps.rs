//! Steps of running trials.
//!
//! A step of a small model takes milliseconds, a commit too: so steps are gathered and written many at a time. A killed
//! search loses at most the last second of steps of trials that it repeats anyway.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::step_buffer::StepBuffer;
use super::trial_id::TrialId;
use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{StepRecord, Store, StoreError, StudyId};
use peft_tune_core::study::{Phase, TrialNumber};

/// Steps gathered before they are written, unless [`FLUSH_AFTER`] comes first.
const FLUSH_STEPS: usize = 4096;

/// Longest time that a step waits, so that who looks at a running trial sees it move.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// Rows of one statement. More gain nothing; SQLite allows 32,766 values.
const ROWS_AT_ONCE: usize = 64;

const INSERT: &str = "insert or replace into step (trial_id, phase, step, loss, learning_rate, grad_norm, tokens, \
                      target_tokens, data_s, forward_s, backward_s, optimizer_s, total_s) values ";
const ROW: &str = "(?,?,?,?,?,?,?,?,?,?,?,?,?)";

static INSERT_MANY: LazyLock<Arc<str>> = LazyLock::new(|| [INSERT, &[ROW; ROWS_AT_ONCE].join(",")].concat().into());
static INSERT_ONE: LazyLock<Arc<str>> = LazyLock::new(|| [INSERT, ROW].concat().into());

#[derive(sqlx::FromRow)]
struct StepRow {
    step: i64,
    loss: Option<f64>,
    learning_rate: Option<f64>,
    grad_norm: Option<f64>,
    tokens: i64,
    target_tokens: i64,
    data_s: Option<f64>,
    forward_s: Option<f64>,
    backward_s: Option<f64>,
    optimizer_s: Option<f64>,
    total_s: Option<f64>,
}

/// Steps of running trials.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    pub(in crate::store) store: &'a Store,
}

impl<'a> Steps<'a> {
    /// Records steps of a running trial. They are written within a second of steps, with the trial's end, or by
    /// [`Steps::flush`], whichever is first. A step that was recorded before is replaced.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], or where writing fails.
    pub async fn record(self, study: StudyId, number: TrialNumber, steps: &[StepRecord]) -> Result<(), StoreError> {
        let known = self.buffer().running.get(&(study, number)).copied();
        let trial = match known {
            Some(trial) => trial,
            None => self.store.trials().id(study, number).await?,
        };
        let full = {
            let mut buffer = self.buffer();
            buffer.waiting.extend(steps.iter().map(|step| (trial, *step)));
            let since = *buffer.since.get_or_insert_with(Instant::now);
            buffer.waiting.len() >= FLUSH_STEPS || since.elapsed() >= FLUSH_AFTER
        };
        if full { self.flush().await } else { Ok(()) }
    }

    /// Writes the steps that wait.
    ///
    /// # Errors
    /// Where writing fails; the steps are then lost.
    pub async fn flush(self) -> Result<(), StoreError> {
        let waiting = self.take_waiting();
        if waiting.is_empty() {
            return Ok(());
        }
        let mut transaction = self.store.begin().await?;
        self.insert(&mut transaction, &waiting).await?;
        self.store.commit(transaction).await
    }

    /// The steps of one phase of a trial, in order. Numbers that were not finite come back as NaN.
    pub async fn of(self, study: StudyId, number: TrialNumber, phase: Phase) -> Result<Vec<StepRecord>, StoreError> {
        let trial = self.store.trials().id(study, number).await?;
        let rows: Vec<StepRow> = sqlx::query_as(
            "select step, loss, learning_rate, grad_norm, tokens, target_tokens,
                    data_s, forward_s, backward_s, optimizer_s, total_s
             from step where trial_id = ? and phase = ? order by step",
        )
        .bind(trial.0)
        .bind(phase.name())
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows.into_iter().map(|row| row.into_record(phase)).collect())
    }

    /// Takes the steps that wait, for a transaction that writes them.
    pub(super) fn take_waiting(self) -> Vec<(TrialId, StepRecord)> {
        let mut buffer = self.buffer();
        buffer.since = None;
        std::mem::take(&mut buffer.waiting)
    }

    /// Forgets the steps of a trial that wait.
    pub(super) fn drop_waiting(self, trial: TrialId) {
        self.buffer().waiting.retain(|(of, _)| *of != trial);
    }

    /// Notes that this process runs a trial.
    pub(super) fn note_running(self, study: StudyId, number: TrialNumber, trial: TrialId) {
        self.buffer().running.insert((study, number), trial);
    }

    /// Notes that a trial runs no more.
    pub(super) fn note_ended(self, study: StudyId, number: TrialNumber) {
        self.buffer().running.remove(&(study, number));
    }

    /// Writes steps within a transaction.
    pub(super) async fn insert(
        self,
        connection: &mut SqliteConnection,
        steps: &[(TrialId, StepRecord)],
    ) -> Result<(), StoreError> {
        let (many, rest) = steps.as_chunks::<ROWS_AT_ONCE>();
        let chunks = many.iter().map(|chunk| (&INSERT_MANY, chunk.as_slice()));
        let singles = rest.chunks(1).map(|chunk| (&INSERT_ONE, chunk));
        for (sql, rows) in chunks.chain(singles) {
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
            for (trial, step) in rows {
                query = query
                    .bind(trial.0)
                    .bind(step.phase.name())
                    .bind(to_i64(step.step)?)
                    .bind(finite(step.loss))
                    .bind(finite(step.learning_rate))
                    .bind(finite(step.grad_norm))
                    .bind(to_i64(step.tokens)?)
                    .bind(to_i64(step.target_tokens)?)
                    .bind(finite(step.data_s))
                    .bind(finite(step.forward_s))
                    .bind(finite(step.backward_s))
                    .bind(finite(step.optimizer_s))
                    .bind(finite(step.total_s));
            }
            query
                .execute(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    /// The buffer of waiting steps, also after a panic elsewhere: it holds plain values that are always whole.
    fn buffer(self) -> MutexGuard<'a, StepBuffer> {
        let steps: &'a Mutex<StepBuffer> = &self.store.step_buffer;
        steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepRow {
    fn into_record(self, phase: Phase) -> StepRecord {
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        StepRecord {
            phase,
            step: to_u64(self.step),
            loss: number(self.loss),
            learning_rate: number(self.learning_rate),
            grad_norm: number(self.grad_norm),
            tokens: to_u64(self.tokens),
            target_tokens: to_u64(self.target_tokens),
            data_s: number(self.data_s),
            forward_s: number(self.forward_s),
            backward_s: number(self.backward_s),
            optimizer_s: number(self.optimizer_s),
            total_s: number(self.total_s),
        }
    }
}
