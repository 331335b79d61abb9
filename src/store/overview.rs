//! Studies as lists show them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::row::to_u64;
use super::{Store, StoreError, StudyId};
use crate::space::{Target, problem_of};
use peft_tune_core::objective::{Bound, Constraint, Direction, Objective};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Problem, pareto_front};

/// A study as lists show it.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyOverview {
    pub id: StudyId,
    pub name: String,
    pub space_path: PathBuf,
    pub sampler: String,
    pub seed: u64,
    pub model: Option<String>,
    /// Whether the native engine runs its trials, rather than a command.
    pub is_native: bool,
    /// Whether the search finds how long the exported recipe trains.
    pub finds_length: bool,
    /// Rows and tokens that are trained on, where they were recorded.
    pub trained_rows: Option<u64>,
    pub trained_tokens: Option<u64>,
    /// What is learnt of the data, in words.
    pub learnt: Option<String>,
    /// UTC, ISO 8601.
    pub created_at: String,
    /// UTC, ISO 8601.
    pub resumed_at: Option<String>,
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
    /// The stack that its settings are for, where that is another.
    pub target: Option<Target>,
    /// Trials by the name of their state.
    pub states: BTreeMap<String, u64>,
    /// Those of them that took their loss over from another.
    pub variants: u64,
    /// Wall-clock seconds of all trials together.
    pub wall_s: f64,
}

impl StudyOverview {
    /// Trials in any state.
    pub fn trials(&self) -> u64 {
        self.states.values().sum()
    }

    /// What it searches; fronts and recommendations need no space.
    pub fn problem(&self, space: Option<SearchSpace>) -> Problem {
        problem_of(
            space.unwrap_or_default(),
            &self.objectives,
            &self.constraints,
            self.is_native,
        )
    }

    /// The Pareto front of its trials as they count ([`Store::confirmed_trials`]), ascending: what the view `pareto_front`
    /// holds.
    pub fn front(&self, trials: &[Trial]) -> Vec<TrialNumber> {
        let front = pareto_front(&self.problem(None), trials);
        front.iter().map(|one| one.trial.number).collect()
    }
}

/// The key of a study's definition that says whether the search finds how long the exported recipe trains; absent where it does not.
pub const FINDS_LENGTH: &str = "finds_length";

#[derive(sqlx::FromRow)]
struct StudyRow {
    id: i64,
    name: String,
    space_path: String,
    sampler: String,
    seed: i64,
    model: Option<String>,
    is_native: bool,
    finds_length: bool,
    rows: Option<i64>,
    tokens: Option<i64>,
    learnt: Option<String>,
    created_at: String,
    resumed_at: Option<String>,
    wall_s: f64,
}

#[derive(sqlx::FromRow)]
struct ObjectiveRow {
    metric: String,
    direction: String,
    reference: Option<f64>,
    known_after: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct ConstraintRow {
    metric: String,
    bound: String,
    limit: f64,
}

impl Store {
    /// Every study, the latest last.
    pub async fn studies(&self) -> Result<Vec<StudyOverview>, StoreError> {
        let rows: Vec<StudyRow> = sqlx::query_as(
            "select study.id, name, space_path, sampler, seed, model.source as model,
                    definition ->> '$.settings.backend' is null as is_native,
                    definition ->> ('$.settings.' || ?) is not null as finds_length,
                    rows, tokens, summary as learnt, created_at, resumed_at,
                    (select total(wall_s) from trial where study_id = study.id) as wall_s
             from study left join model on model.id = study.model_id
                        left join data_set on data_set.id = study.data_set_id
                        left join data_learnt on data_learnt.data_set_id = study.data_set_id
             order by coalesce(resumed_at, created_at), study.id",
        )
        .bind(FINDS_LENGTH)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let mut studies = Vec::with_capacity(rows.len());
        for row in rows {
            studies.push(self.overview(row).await?);
        }
        Ok(studies)
    }

    /// The study called `name`, or the latest one where there is no name.
    ///
    /// # Errors
    /// [`StoreError::NoStudy`] or [`StoreError::Empty`].
    pub async fn study(&self, name: Option<&str>) -> Result<StudyOverview, StoreError> {
        let mut studies = self.studies().await?;
        let Some(latest) = studies.pop() else {
            return Err(StoreError::Empty {
                path: self.path.clone(),
            });
        };
        let Some(name) = name.filter(|name| *name != latest.name) else {
            return Ok(latest);
        };
        let known: Vec<String> = studies
            .iter()
            .chain([&latest])
            .map(|study| format!("`{}`", study.name))
            .collect();
        let found = studies.into_iter().find(|study| study.name == name);
        found.ok_or_else(|| StoreError::NoStudy {
            study: name.to_owned(),
            path: self.path.clone(),
            known: known.join(", "),
        })
    }

    async fn overview(&self, row: StudyRow) -> Result<StudyOverview, StoreError> {
        let states: Vec<(String, i64)> =
            sqlx::query_as("select state, count(*) from trial where study_id = ? group by state")
                .bind(row.id)
                .fetch_all(&self.pool)
                .await
                .map_err(|error| self.error(error))?;
        Ok(StudyOverview {
            id: StudyId(row.id),
            variants: self.variants(StudyId(row.id)).await?.len() as u64,
            objectives: self.objectives(StudyId(row.id)).await?,
            constraints: self.constraints(StudyId(row.id)).await?,
            target: self.target(StudyId(row.id)).await?,
            name: row.name,
            space_path: row.space_path.into(),
            sampler: row.sampler,
            seed: row.seed.cast_unsigned(),
            model: row.model,
            is_native: row.is_native,
            finds_length: row.finds_length,
            trained_rows: row.rows.map(to_u64),
            trained_tokens: row.tokens.map(to_u64),
            learnt: row.learnt,
            created_at: row.created_at,
            resumed_at: row.resumed_at,
            states: states
                .into_iter()
                .map(|(state, count)| (state, to_u64(count)))
                .collect(),
            wall_s: row.wall_s,
        })
    }

    async fn objectives(&self, study: StudyId) -> Result<Vec<Objective>, StoreError> {
        let rows: Vec<ObjectiveRow> = sqlx::query_as(
            "select metric, direction, reference, known_after from study_objective where study_id = ? order by position",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(rows.into_iter().map(ObjectiveRow::into_objective).collect())
    }

    async fn constraints(&self, study: StudyId) -> Result<Vec<Constraint>, StoreError> {
        let rows: Vec<ConstraintRow> = sqlx::query_as(
            "select metric, bound, \"limit\" from study_constraint where study_id = ? order by position",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(rows.into_iter().map(ConstraintRow::into_constraint).collect())
    }
}

impl ObjectiveRow {
    fn into_objective(self) -> Objective {
        Objective {
            metric: self.metric,
            direction: match self.direction.as_str() {
                "maximize" => Direction::Maximize,
                _ => Direction::Minimize,
            },
            reference: self.reference,
            known_after: self.known_after.map(to_u64),
        }
    }
}

impl ConstraintRow {
    fn into_constraint(self) -> Constraint {
        Constraint {
            metric: self.metric,
            bound: match self.bound.as_str() {
                "at_least" => Bound::AtLeast(self.limit),
                _ => Bound::AtMost(self.limit),
            },
        }
    }
}
