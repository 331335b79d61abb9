//! Definitions of studies: what they search, on what and for what.

use sqlx::SqliteConnection;

use super::identity::{PLACES, identity_of, is_place, json_differences, json_hash, without_places};
use crate::store::row::{finite, to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId, StudyRecord};
use peft_tune_core::objective::{Bound, Constraint, Direction, Objective};
use peft_tune_core::space::SearchSpace;

/// A definition as the database holds it.
#[derive(sqlx::FromRow)]
struct StoredDefinition {
    id: i64,
    /// JSON of the whole definition, as far as nobody altered it.
    #[sqlx(rename = "definition")]
    text: String,
    #[sqlx(rename = "definition_hash")]
    hash: String,
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

/// Definitions of studies.
#[derive(Clone, Copy, Debug)]
pub struct Definitions<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Definitions<'_> {
    /// Takes over where the files of a study lie now, if nothing else of its definition changed, and says whether it did.
    /// Whoever calls this has seen that the files hold the same.
    ///
    /// # Errors
    /// Where the database cannot be read or written.
    pub async fn move_files(self, record: &StudyRecord) -> Result<bool, StoreError> {
        let definition = whole(record)?;
        let mut transaction = self.store.begin().await?;
        let hash = json_hash(&identity_of(&definition));
        let found = self.stored(&mut transaction, &record.name).await?;
        let Some(old) = found.filter(|old| old.hash != hash) else {
            return Ok(false);
        };
        let Ok(text) = serde_json::from_str::<serde_json::Value>(&old.text) else {
            return Ok(false);
        };
        if without_places(identity_of(&text)) != without_places(identity_of(&definition)) {
            return Ok(false);
        }
        sqlx::query("update study set definition = ?, definition_hash = ? where id = ? and definition_hash = ?")
            .bind(definition.to_string())
            .bind(hash)
            .bind(old.id)
            .bind(old.hash)
            .execute(&mut *transaction)
            .await
            .map_err(|error| self.store.error(error))?;
        self.move_recipes(&mut transaction, StudyId(old.id), &definition)
            .await?;
        self.store.commit(transaction).await?;
        Ok(true)
    }

    /// Lets the recipes of a study's trials, which are exported, name its files where a definition says that they lie.
    async fn move_recipes(
        self,
        connection: &mut SqliteConnection,
        study: StudyId,
        definition: &serde_json::Value,
    ) -> Result<(), StoreError> {
        for place in PLACES {
            let Some(key) = place.strip_prefix("/settings/base/") else {
                continue;
            };
            let Some(value) = definition.pointer(place).filter(|value| is_place(value)) else {
                continue;
            };
            sqlx::query(
                "update trial set recipe = json_set(recipe, ?, json(?)) where study_id = ? and recipe is not null",
            )
            .bind(format!("$.{}", key.replace('/', ".")))
            .bind(value.to_string())
            .bind(study.0)
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    /// The text of a study's file, as the search that began it read it.
    pub async fn file_text(self, study: StudyId) -> Result<String, StoreError> {
        sqlx::query_scalar("select space_text from study where id = ?")
            .bind(study.0)
            .fetch_one(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))
    }

    /// The settings that define a study, as the search that began it stored them: an object, or null where the definition is of
    /// another form, as a file from someone else may have it.
    pub async fn settings(self, study: StudyId) -> Result<serde_json::Value, StoreError> {
        let definition: String = sqlx::query_scalar("select definition from study where id = ?")
            .bind(study.0)
            .fetch_one(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        let mut definition: serde_json::Value = self
            .store
            .read_json(&definition, || "the definition of the study".to_owned())?;
        let settings = definition.get_mut("settings").filter(|settings| settings.is_object());
        Ok(settings.map(serde_json::Value::take).unwrap_or_default())
    }

    /// The search space of a study: the parameters of its file, with the ranges that were widened since. `None` where the
    /// definition is of another form.
    pub async fn search_space(self, study: StudyId) -> Result<Option<SearchSpace>, StoreError> {
        let mut settings = self.settings(study).await?;
        let Ok(mut space) = serde_json::from_value::<SearchSpace>(settings["space"].take()) else {
            return Ok(None);
        };
        space.widen(&self.store.widenings().of(study).await?);
        Ok(Some(space))
    }

    pub(super) async fn find_or_insert(
        self,
        record: &StudyRecord,
        definition: &serde_json::Value,
    ) -> Result<(StudyId, bool), StoreError> {
        let mut transaction = self.store.begin().await?;
        if let Some(old) = self.stored(&mut transaction, &record.name).await? {
            self.check_same(&record.name, &old, definition)?;
            return Ok((StudyId(old.id), true));
        }
        let id = self.insert_study(&mut transaction, record, definition).await?;
        self.store.commit(transaction).await?;
        Ok((id, false))
    }

    async fn stored(
        self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<Option<StoredDefinition>, StoreError> {
        sqlx::query_as("select id, definition, definition_hash from study where name = ?")
            .bind(name)
            .fetch_optional(connection)
            .await
            .map_err(|error| self.store.error(error))
    }

    fn check_same(self, name: &str, old: &StoredDefinition, new: &serde_json::Value) -> Result<(), StoreError> {
        let new = identity_of(new);
        if old.hash == json_hash(&new) {
            return Ok(());
        }
        let old: serde_json::Value = serde_json::from_str(&old.text).map_err(|source| StoreError::Unreadable {
            path: self.store.path.clone(),
            what: format!("the definition of study `{name}`"),
            source,
        })?;
        Err(StoreError::StudyChanged {
            study: name.to_owned(),
            path: self.store.path.clone(),
            differences: json_differences(&identity_of(&old), &new, 5).join(", "),
        })
    }

    async fn insert_study(
        self,
        connection: &mut SqliteConnection,
        record: &StudyRecord,
        definition: &serde_json::Value,
    ) -> Result<StudyId, StoreError> {
        let model = match &record.model {
            Some(model) => Some(self.store.facts().model_id(connection, model).await?),
            None => None,
        };
        let data_set = match &record.data_set {
            Some(data_set) => Some(self.store.facts().data_set_id(connection, data_set).await?),
            None => None,
        };
        let id: i64 = sqlx::query_scalar(
            "insert into study (name, space_path, space_text, definition, definition_hash, seed, sampler, model_id,
                                data_set_id)
             values (?, ?, ?, ?, ?, ?, ?, ?, ?) returning id",
        )
        .bind(&record.name)
        .bind(record.space_path.to_string_lossy())
        .bind(&record.space_text)
        .bind(definition.to_string())
        .bind(json_hash(&identity_of(definition)))
        .bind(record.seed.cast_signed())
        .bind(&record.sampler)
        .bind(model)
        .bind(data_set)
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| self.store.error(error))?;
        self.insert_objectives(connection, id, &record.objectives).await?;
        self.insert_constraints(connection, id, &record.constraints).await?;
        Ok(StudyId(id))
    }

    async fn insert_objectives(
        self,
        connection: &mut SqliteConnection,
        study: i64,
        objectives: &[Objective],
    ) -> Result<(), StoreError> {
        for (position, objective) in (0i64..).zip(objectives) {
            sqlx::query(
                "insert into study_objective (study_id, position, metric, direction, reference, known_after)
                 values (?, ?, ?, ?, ?, ?)",
            )
            .bind(study)
            .bind(position)
            .bind(&objective.metric)
            .bind(match objective.direction {
                Direction::Minimize => "minimize",
                Direction::Maximize => "maximize",
            })
            .bind(objective.reference.and_then(finite))
            .bind(objective.known_after.map(to_i64).transpose()?)
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn insert_constraints(
        self,
        connection: &mut SqliteConnection,
        study: i64,
        constraints: &[Constraint],
    ) -> Result<(), StoreError> {
        for (position, constraint) in (0i64..).zip(constraints) {
            let (bound, limit) = match constraint.bound {
                Bound::AtMost(limit) => ("at_most", limit),
                Bound::AtLeast(limit) => ("at_least", limit),
            };
            sqlx::query(
                "insert into study_constraint (study_id, position, metric, bound, \"limit\") values (?, ?, ?, ?, ?)",
            )
            .bind(study)
            .bind(position)
            .bind(&constraint.metric)
            .bind(bound)
            .bind(limit)
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    /// Stores the definition that a study goes on with: what is no part of its identity may have changed.
    pub(super) async fn note(
        self,
        connection: &mut SqliteConnection,
        id: StudyId,
        definition: &serde_json::Value,
    ) -> Result<(), StoreError> {
        sqlx::query("update study set definition = ?1 where id = ?2 and definition <> ?1")
            .bind(definition.to_string())
            .bind(id.0)
            .execute(connection)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    pub(super) async fn objectives(self, study: StudyId) -> Result<Vec<Objective>, StoreError> {
        let rows: Vec<ObjectiveRow> = sqlx::query_as(
            "select metric, direction, reference, known_after from study_objective where study_id = ? order by position",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(rows.into_iter().map(ObjectiveRow::into_objective).collect())
    }

    pub(super) async fn constraints(self, study: StudyId) -> Result<Vec<Constraint>, StoreError> {
        let rows: Vec<ConstraintRow> = sqlx::query_as(
            "select metric, bound, \"limit\" from study_constraint where study_id = ? order by position",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
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

/// The whole definition of a study: the given one with objectives and constraints.
pub(super) fn whole(record: &StudyRecord) -> Result<serde_json::Value, StoreError> {
    let whole = || {
        Ok(serde_json::json!({
            "objectives": serde_json::to_value(&record.objectives)?,
            "constraints": serde_json::to_value(&record.constraints)?,
            "settings": record.definition,
        }))
    };
    whole().map_err(|source| StoreError::Unwritable { what: "study", source })
}
