//! Runs of searches: their budgets, stages and endings, which their trials do not tell.

use schemars::JsonSchema;
use serde::Serialize;

use crate::store::row::{to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// Stage of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchStage {
    /// Trials run within the budget, and variants behind it.
    Trials,
    /// Trials that something else disturbed are measured again, once the budget is spent.
    MeasuringAgain,
    /// The recommendation is confirmed by repeats.
    Confirming,
    /// The search has ended.
    Ended,
}

impl SearchStage {
    const ALL: [Self; 4] = [Self::Trials, Self::MeasuringAgain, Self::Confirming, Self::Ended];

    /// Name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trials => "trials",
            Self::MeasuringAgain => "measuring_again",
            Self::Confirming => "confirming",
            Self::Ended => "ended",
        }
    }
}

/// Budget of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SearchBudget {
    /// Trials of the study, variants not counted.
    pub trials: Option<u64>,
    /// Seconds of all trials, of repeats, and of the runs that confirm the recommendation.
    pub seconds: Option<f64>,
    /// Trials that run side by side.
    pub workers: u64,
}

/// Budget of a study with the time that was spent of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spending {
    pub budget: SearchBudget,
    /// Stage that the search recorded last: a lost process leaves its stage behind.
    pub stage: SearchStage,
    /// Wall-clock seconds of the finished trials that the budget counts, in order.
    pub counted_s: Vec<f64>,
    /// Seconds of all finished trials, variants included, of lost attempts, and of the runs behind them.
    pub finished_s: f64,
    /// Seconds of each trial under way so far.
    pub under_way_s: Vec<f64>,
}

/// Ending of one run of a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema, sqlx::FromRow)]
pub struct EndingRecord {
    /// `trials_done`, `time_spent`, `exhausted`, `interrupted` or `stopped`.
    pub kind: String,
    /// The reason in words, with its numbers.
    pub reason: String,
    /// Finished trials by then.
    #[sqlx(try_from = "i64")]
    pub trials: u64,
}

/// Runs of the searches of studies: their budgets, stages and endings.
#[derive(Clone, Copy, Debug)]
pub struct Searches<'a> {
    pub(in crate::store) store: &'a Store,
}

#[derive(sqlx::FromRow)]
struct StateRow {
    budget_trials: Option<i64>,
    budget_s: Option<f64>,
    workers: i64,
    stage: String,
}

/// Seconds that a trial took so far.
#[derive(sqlx::FromRow)]
struct CostRow {
    #[sqlx(try_from = "i64")]
    number: TrialNumber,
    state: String,
    wall_s: f64,
    since_start_s: f64,
}

impl Searches<'_> {
    /// Records the budget of a search that begins; its stage is to run trials.
    pub async fn record_begin(self, study: StudyId, budget: SearchBudget) -> Result<(), StoreError> {
        sqlx::query(
            "insert or replace into search_state (study_id, budget_trials, budget_s, workers, stage) values (?, ?, ?, ?, ?)",
        )
        .bind(study.0)
        .bind(budget.trials.map(to_i64).transpose()?)
        .bind(budget.seconds)
        .bind(to_i64(budget.workers.max(1))?)
        .bind(SearchStage::Trials.name())
        .execute(&self.store.pool)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// Records the stage that a search is in from now on.
    pub async fn record_stage(self, study: StudyId, stage: SearchStage) -> Result<(), StoreError> {
        sqlx::query(
            "update search_state set stage = ?1, stage_since = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
             where study_id = ?2 and stage <> ?1",
        )
        .bind(stage.name())
        .bind(study.0)
        .execute(&self.store.pool)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// Time that a study has spent of the budget of its last search; `None` where no search recorded a budget.
    pub async fn spending(self, study: StudyId) -> Result<Option<Spending>, StoreError> {
        let state: Option<StateRow> =
            sqlx::query_as("select budget_trials, budget_s, workers, stage from search_state where study_id = ?")
                .bind(study.0)
                .fetch_optional(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        let Some(state) = state else {
            return Ok(None);
        };
        let variants = self.store.inheritance().variants(study).await?;
        let spent = self.store.spent_times().of(study).await?;
        let mut spending = Spending {
            budget: SearchBudget {
                trials: state.budget_trials.map(to_u64),
                seconds: state.budget_s,
                workers: to_u64(state.workers),
            },
            stage: SearchStage::ALL
                .into_iter()
                .find(|stage| stage.name() == state.stage)
                .unwrap_or(SearchStage::Ended),
            counted_s: Vec::new(),
            finished_s: spent.total_s(),
            under_way_s: Vec::new(),
        };
        for row in self.trial_costs(study).await? {
            match row.state.as_str() {
                "waiting" => {}
                "running" => spending.under_way_s.push(row.since_start_s),
                _ => {
                    if !variants.contains_key(&row.number) {
                        spending.counted_s.push(row.wall_s);
                    }
                }
            }
        }
        Ok(Some(spending))
    }

    /// Records the ending of a run of a study.
    pub async fn record_ending(self, study: StudyId, ending: &EndingRecord) -> Result<(), StoreError> {
        sqlx::query("insert into ending (study_id, kind, reason, trials) values (?, ?, ?, ?)")
            .bind(study.0)
            .bind(&ending.kind)
            .bind(&ending.reason)
            .bind(to_i64(ending.trials)?)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Ending of the last search of a study; `None` until one is recorded, which is once the trials are over: repeats and the
    /// confirmation may still run then. It stays `None` where the process was lost before that.
    pub async fn last_ending(self, study: StudyId) -> Result<Option<EndingRecord>, StoreError> {
        let is_last: bool = sqlx::query_scalar(
            "select coalesce(max(ended_at), '') >= (select coalesce(resumed_at, created_at) from study where id = ?1)
             from ending where study_id = ?1",
        )
        .bind(study.0)
        .fetch_one(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        if is_last {
            self.any_ending(study).await
        } else {
            Ok(None)
        }
    }

    /// Ending of the latest run of a study that ended; `None` where none did.
    async fn any_ending(self, study: StudyId) -> Result<Option<EndingRecord>, StoreError> {
        sqlx::query_as("select kind, reason, trials from ending where study_id = ? order by id desc limit 1")
            .bind(study.0)
            .fetch_optional(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))
    }

    async fn trial_costs(self, study: StudyId) -> Result<Vec<CostRow>, StoreError> {
        sqlx::query_as(
            "select number, state, coalesce(wall_s, 0.0) as wall_s,
                    max(0.0, coalesce((julianday('now') - julianday(started_at)) * 86400.0, 0.0)) as since_start_s
             from trial where study_id = ? order by number",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }
}
