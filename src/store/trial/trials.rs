//! Trials: starting, ending and handing them back.

use sqlx::SqliteConnection;

use super::state::StateColumns;
use super::trial_id::TrialId;
use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{Metrics, ParamValue, Params, Phase, TrialNumber, TrialState};

/// Trials on their way: starting, ending and handing them back.
#[derive(Clone, Copy, Debug)]
pub struct Trials<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Trials<'_> {
    /// Starts a trial: a new one, or one that was handed back. Returns which attempt it is, from 1. `recipe` is `None`
    /// for a command backend, and for params that make no recipe.
    ///
    /// # Errors
    /// [`StoreError::WrongState`] where the trial is running or finished, [`StoreError::NotFinite`] for a param.
    pub async fn start(
        self,
        study: StudyId,
        number: TrialNumber,
        params: &Params,
        recipe: Option<&Recipe>,
    ) -> Result<u64, StoreError> {
        let recipe = recipe.map(serde_json::to_string).transpose();
        let recipe = recipe.map_err(|source| StoreError::Unwritable { what: "recipe", source })?;
        let mut transaction = self.store.begin().await?;
        let found: Option<(i64, String)> =
            sqlx::query_as("select id, state from trial where study_id = ? and number = ?")
                .bind(study.0)
                .bind(to_i64(number.0)?)
                .fetch_optional(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        if let Some((_, state)) = found.as_ref().filter(|(_, state)| state != "waiting") {
            return Err(StoreError::WrongState {
                trial: number.0,
                wanted: "running",
                found: state.clone(),
            });
        }
        let (id, attempt) = match found {
            None => {
                self.insert_trial(&mut transaction, study, number, recipe.as_deref())
                    .await?
            }
            Some((id, _)) => self.restart_trial(&mut transaction, id, recipe.as_deref()).await?,
        };
        self.replace_params(&mut transaction, id, number, params).await?;
        self.store.commit(transaction).await?;
        self.store.steps().note_running(study, number, TrialId(id));
        Ok(to_u64(attempt))
    }

    /// Ends a running trial: state, metrics, wall time and the steps that still wait, all or nothing. When it returns,
    /// the trial is on the disk.
    ///
    /// # Errors
    /// [`StoreError::WrongState`] where the trial is not running or `state` is no end, [`StoreError::NoTrial`].
    pub async fn finish(
        self,
        study: StudyId,
        number: TrialNumber,
        state: &TrialState,
        wall_s: f64,
    ) -> Result<(), StoreError> {
        if !state.is_finished() {
            return Err(StoreError::WrongState {
                trial: number.0,
                wanted: "finished",
                found: state.name().to_owned(),
            });
        }
        let columns = StateColumns::new(state).map_err(|source| StoreError::Unwritable {
            what: "outcome",
            source,
        })?;
        let id = self.id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        let ended = sqlx::query(
            "update trial
             set state = ?, reason = ?, detail = ?, phase = coalesce(?, iif(?, phase, null)), wall_s = ?,
                 ended_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
             where id = ? and state = 'running'",
        )
        .bind(&columns.state)
        .bind(&columns.reason)
        .bind(&columns.detail)
        .bind(columns.phase)
        // Where a trial came to is worth keeping only if it did not come to its end.
        .bind(matches!(state, TrialState::Failed { .. } | TrialState::Pruned { .. }))
        .bind(finite(wall_s).map(|seconds| seconds.max(0.0)))
        .bind(id.0)
        .execute(&mut *transaction)
        .await
        .map_err(|error| self.store.error(error))?;
        if ended.rows_affected() == 0 {
            return Err(self.not_running(&mut transaction, id, number, state.name()).await?);
        }
        let steps = self.store.steps().take_waiting();
        self.store.steps().insert(&mut transaction, &steps).await?;
        if let Some(metrics) = state.metrics() {
            self.insert_metrics(&mut transaction, id, metrics).await?;
        }
        self.store.commit(transaction).await?;
        self.store.steps().note_ended(study, number);
        Ok(())
    }

    /// Hands a running trial back, as if the search had been killed: it waits to be repeated. For a search that is asked
    /// to stop in the middle of a trial.
    ///
    /// # Errors
    /// [`StoreError::NoTrial`], [`StoreError::WrongState`] where the trial is not running.
    pub async fn release(self, study: StudyId, number: TrialNumber) -> Result<(), StoreError> {
        let id = self.id(study, number).await?;
        self.store.steps().drop_waiting(id);
        let mut transaction = self.store.begin().await?;
        if self.hand_back(&mut transaction, id).await? == 0 {
            return Err(self.not_running(&mut transaction, id, number, "waiting").await?);
        }
        self.store.commit(transaction).await?;
        self.store.steps().note_ended(study, number);
        Ok(())
    }

    /// Makes the running trials of a study wait again, without what they left and took over; returns the numbers of all that wait.
    pub(in crate::store) async fn hand_back_running(
        self,
        connection: &mut SqliteConnection,
        study: StudyId,
    ) -> Result<Vec<TrialNumber>, StoreError> {
        let waiting: Vec<(i64, i64, String)> = sqlx::query_as(
            "select id, number, state from trial where study_id = ? and state in ('running', 'waiting') order by number",
        )
        .bind(study.0)
        .fetch_all(&mut *connection)
        .await
        .map_err(|error| self.store.error(error))?;
        for (id, _, _) in waiting.iter().filter(|(_, _, state)| state == "running") {
            self.hand_back(connection, TrialId(*id)).await?;
        }
        Ok(waiting
            .into_iter()
            .map(|(_, number, _)| TrialNumber(to_u64(number)))
            .collect())
    }

    async fn hand_back(self, connection: &mut SqliteConnection, trial: TrialId) -> Result<u64, StoreError> {
        let changed =
            sqlx::query("update trial set state = 'waiting', phase = null where id = ? and state = 'running'")
                .bind(trial.0)
                .execute(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?
                .rows_affected();
        if changed > 0 {
            self.delete_course(connection, trial).await?;
        }
        Ok(changed)
    }

    /// Lets failed trials wait to be run again: something else than their settings failed. Their failures stay as lost attempts.
    pub async fn reopen_failed(self, study: StudyId, numbers: &[TrialNumber]) -> Result<(), StoreError> {
        let mut ids = Vec::with_capacity(numbers.len());
        for number in numbers {
            ids.push(self.id(study, *number).await?);
        }
        let mut transaction = self.store.begin().await?;
        for id in ids {
            for statement in [
                // Without its seconds: the budget of a study is not spent by what its settings did not do.
                "insert into lost_attempt (trial_id, attempt, phase, message)
                 select id, attempt, phase, coalesce(detail ->> '$.message', reason, '')
                 from trial where id = ? and state = 'failed'",
                "delete from metric where trial_id = ?",
                "update trial
                 set state = 'waiting', reason = null, detail = null, phase = null, wall_s = null, ended_at = null
                 where id = ? and state = 'failed'",
            ] {
                sqlx::query(statement)
                    .bind(id.0)
                    .execute(&mut *transaction)
                    .await
                    .map_err(|error| self.store.error(error))?;
            }
            self.delete_course(&mut transaction, id).await?;
        }
        self.store.commit(transaction).await
    }

    /// Deletes the steps, evaluations, decisions, reports and stop of a trial, and what it took over.
    async fn delete_course(self, connection: &mut SqliteConnection, trial: TrialId) -> Result<(), StoreError> {
        for delete in [
            "delete from step where trial_id = ?",
            "delete from evaluation where trial_id = ?",
            "delete from precision_decision where trial_id = ?",
            "delete from report where trial_id = ?",
            "delete from stop where trial_id = ?",
            "delete from inheritance where trial_id = ?",
            "delete from metric_inheritance where trial_id = ?",
        ] {
            sqlx::query(delete)
                .bind(trial.0)
                .execute(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn insert_trial(
        self,
        connection: &mut SqliteConnection,
        study: StudyId,
        number: TrialNumber,
        recipe: Option<&str>,
    ) -> Result<(i64, i64), StoreError> {
        sqlx::query_as(
            "insert into trial (study_id, number, state, phase, attempt, machine_id, recipe)
             values (?1, ?2, 'running', 'load', 1, (select machine_id from study where id = ?1), ?3)
             returning id, attempt",
        )
        .bind(study.0)
        .bind(to_i64(number.0)?)
        .bind(recipe)
        .fetch_one(connection)
        .await
        .map_err(|error| self.store.error(error))
    }

    async fn restart_trial(
        self,
        connection: &mut SqliteConnection,
        id: i64,
        recipe: Option<&str>,
    ) -> Result<(i64, i64), StoreError> {
        sqlx::query_as(
            "update trial
             set state = 'running', phase = 'load', attempt = attempt + 1, recipe = ?,
                 machine_id = (select machine_id from study where id = trial.study_id),
                 started_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
             where id = ?
             returning id, attempt",
        )
        .bind(recipe)
        .bind(id)
        .fetch_one(connection)
        .await
        .map_err(|error| self.store.error(error))
    }

    async fn replace_params(
        self,
        connection: &mut SqliteConnection,
        trial: i64,
        number: TrialNumber,
        params: &Params,
    ) -> Result<(), StoreError> {
        sqlx::query("delete from param where trial_id = ?")
            .bind(trial)
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        for (name, value) in params {
            let json =
                serde_json::to_string(value).map_err(|source| StoreError::Unwritable { what: "param", source })?;
            let insert = sqlx::query("insert into param (trial_id, name, json, value) values (?, ?, ?, ?)")
                .bind(trial)
                .bind(name)
                .bind(json);
            let insert = match value {
                ParamValue::Bool(value) => insert.bind(value),
                ParamValue::Int(value) => insert.bind(value),
                ParamValue::Float(value) if value.is_finite() => insert.bind(value),
                ParamValue::Float(_) => {
                    return Err(StoreError::NotFinite {
                        trial: number.0,
                        name: name.clone(),
                    });
                }
                ParamValue::Text(value) => insert.bind(value.as_str()),
                ParamValue::List(_) => insert.bind(value.to_string()),
            };
            insert
                .execute(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn insert_metrics(
        self,
        connection: &mut SqliteConnection,
        trial: TrialId,
        metrics: &Metrics,
    ) -> Result<(), StoreError> {
        for (name, value) in metrics.iter().filter(|(_, value)| value.is_finite()) {
            sqlx::query("insert into metric (trial_id, name, value) values (?, ?, ?)")
                .bind(trial.0)
                .bind(name)
                .bind(value)
                .execute(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn not_running(
        self,
        connection: &mut SqliteConnection,
        trial: TrialId,
        number: TrialNumber,
        wanted: &'static str,
    ) -> Result<StoreError, StoreError> {
        let found = sqlx::query_scalar("select state from trial where id = ?")
            .bind(trial.0)
            .fetch_one(connection)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(StoreError::WrongState {
            trial: number.0,
            wanted,
            found,
        })
    }

    /// Records the phase that a running trial has come to.
    pub async fn record_phase(self, study: StudyId, number: TrialNumber, phase: Phase) -> Result<(), StoreError> {
        sqlx::query("update trial set phase = ? where study_id = ? and number = ? and state = 'running'")
            .bind(phase.name())
            .bind(study.0)
            .bind(to_i64(number.0)?)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Id of a trial.
    pub(in crate::store) async fn id(self, study: StudyId, number: TrialNumber) -> Result<TrialId, StoreError> {
        let id: Option<i64> = sqlx::query_scalar("select id from trial where study_id = ? and number = ?")
            .bind(study.0)
            .bind(to_i64(number.0)?)
            .fetch_optional(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        match id {
            Some(id) => Ok(TrialId(id)),
            None => Err(self.no_trial(study, number).await?),
        }
    }

    /// The error for a trial that a study does not have.
    async fn no_trial(self, study: StudyId, number: TrialNumber) -> Result<StoreError, StoreError> {
        let (name, count): (String, i64) = sqlx::query_as(
            "select name, (select count(*) from trial where study_id = study.id) from study where id = ?",
        )
        .bind(study.0)
        .fetch_one(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(StoreError::NoTrial {
            study: name,
            trial: number.0,
            count: to_u64(count),
        })
    }
}
