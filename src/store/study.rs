//! Studies: beginning and resuming them.

use sqlx::SqliteConnection;

use super::lock::{Attempt, StudyLock, has_no_locks, lock_path};
use super::record::{json_differences, json_hash};
use super::row::{finite, to_i64};
use super::{DataSetRecord, MachineRecord, ModelRecord, Store, StoreError, StudyRecord};
use peft_tune_core::objective::{Bound, Constraint, Direction, Objective};
use peft_tune_core::study::TrialNumber;

/// `study.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StudyId(pub i64);

/// Objectives that `pareto_front` can compare.
const MOST_OBJECTIVES: usize = 6;

/// A study that this process runs. No other process can begin it until this value is dropped.
#[derive(Debug)]
pub struct OpenStudy {
    pub id: StudyId,
    /// Whether the study was there before.
    pub resumed: bool,
    /// Trials that were running when the search was killed. They are waiting again, without metrics and steps; their
    /// params are as they were, and starting one raises its attempt.
    pub to_repeat: Vec<TrialNumber>,
    /// Dropped with the study.
    lock: StudyLock,
}

/// What the database holds of a study's definition.
#[derive(sqlx::FromRow)]
struct StoredDefinition {
    id: i64,
    /// JSON, as far as nobody altered it.
    #[sqlx(rename = "definition")]
    text: String,
    #[sqlx(rename = "definition_hash")]
    hash: String,
}

impl OpenStudy {
    /// The lock that is held.
    pub fn lock(&self) -> &StudyLock {
        &self.lock
    }
}

impl Store {
    /// Begins a study, or resumes it where the database has one of the same name and definition, and locks it.
    ///
    /// # Errors
    /// [`StoreError::StudyChanged`] where the name is taken by another definition, [`StoreError::StudyRunning`] where
    /// another process runs it, [`StoreError::TooManyObjectives`].
    pub async fn begin_study(&self, record: &StudyRecord) -> Result<OpenStudy, StoreError> {
        if record.objectives.len() > MOST_OBJECTIVES {
            return Err(StoreError::TooManyObjectives {
                study: record.name.clone(),
                found: record.objectives.len(),
                most: MOST_OBJECTIVES,
            });
        }
        let definition = record
            .whole_definition()
            .map_err(|source| StoreError::Unwritable { what: "study", source })?;
        let (id, resumed) = self.find_or_insert_study(record, &definition).await?;
        let lock = self.lock_study(id, &record.name)?;
        let mut transaction = self.begin().await?;
        let to_repeat = self.hand_back_running_trials(&mut transaction, id).await?;
        self.note_definition(&mut transaction, id, &definition).await?;
        self.note_machine_and_sampler(&mut transaction, id, record, resumed)
            .await?;
        self.commit(transaction).await?;
        Ok(OpenStudy {
            id,
            resumed,
            to_repeat,
            lock,
        })
    }

    /// Takes over where the files of a study lie now, if nothing else of its definition changed: whoever calls this has seen that they
    /// hold the same. Says whether it did.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn move_study(&self, record: &StudyRecord) -> Result<bool, StoreError> {
        let definition = record
            .whole_definition()
            .map_err(|source| StoreError::Unwritable { what: "study", source })?;
        let mut transaction = self.begin().await?;
        let hash = json_hash(&identity_of(&definition));
        let found = self.definition_of(&mut transaction, &record.name).await?;
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
            .map_err(|error| self.error(error))?;
        self.move_recipes(&mut transaction, StudyId(old.id), &definition)
            .await?;
        self.commit(transaction).await?;
        Ok(true)
    }

    /// Lets the recipes of a study's trials, which are exported, name its files where a definition says that they lie.
    async fn move_recipes(
        &self,
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
            .map_err(|error| self.error(error))?;
        }
        Ok(())
    }

    async fn find_or_insert_study(
        &self,
        record: &StudyRecord,
        definition: &serde_json::Value,
    ) -> Result<(StudyId, bool), StoreError> {
        let mut transaction = self.begin().await?;
        if let Some(old) = self.definition_of(&mut transaction, &record.name).await? {
            self.check_same_definition(&record.name, &old, definition)?;
            return Ok((StudyId(old.id), true));
        }
        let id = self.insert_study(&mut transaction, record, definition).await?;
        self.commit(transaction).await?;
        Ok((id, false))
    }

    async fn definition_of(
        &self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<Option<StoredDefinition>, StoreError> {
        sqlx::query_as("select id, definition, definition_hash from study where name = ?")
            .bind(name)
            .fetch_optional(connection)
            .await
            .map_err(|error| self.error(error))
    }

    fn check_same_definition(
        &self,
        name: &str,
        old: &StoredDefinition,
        new: &serde_json::Value,
    ) -> Result<(), StoreError> {
        let new = identity_of(new);
        if old.hash == json_hash(&new) {
            return Ok(());
        }
        let old: serde_json::Value = serde_json::from_str(&old.text).map_err(|source| StoreError::Unreadable {
            path: self.path.clone(),
            what: format!("the definition of study `{name}`"),
            source,
        })?;
        Err(StoreError::StudyChanged {
            study: name.to_owned(),
            path: self.path.clone(),
            differences: json_differences(&identity_of(&old), &new, 5).join(", "),
        })
    }

    async fn insert_study(
        &self,
        connection: &mut SqliteConnection,
        record: &StudyRecord,
        definition: &serde_json::Value,
    ) -> Result<StudyId, StoreError> {
        let model = match &record.model {
            Some(model) => Some(self.model_id(connection, model).await?),
            None => None,
        };
        let data_set = match &record.data_set {
            Some(data_set) => Some(self.data_set_id(connection, data_set).await?),
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
        .map_err(|error| self.error(error))?;
        self.insert_objectives(connection, id, &record.objectives).await?;
        self.insert_constraints(connection, id, &record.constraints).await?;
        Ok(StudyId(id))
    }

    async fn insert_objectives(
        &self,
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
            .map_err(|error| self.error(error))?;
        }
        Ok(())
    }

    async fn insert_constraints(
        &self,
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
            .map_err(|error| self.error(error))?;
        }
        Ok(())
    }

    pub(super) fn lock_study(&self, id: StudyId, name: &str) -> Result<StudyLock, StoreError> {
        let path = lock_path(&self.path, id.0);
        match StudyLock::try_at(&path) {
            Ok(Attempt::Locked(lock)) => Ok(lock),
            Ok(Attempt::HeldBy(process)) => Err(StoreError::StudyRunning {
                study: name.to_owned(),
                process,
            }),
            Err(error) if has_no_locks(&error) => Err(StoreError::NoLocks {
                path: self.path.clone(),
            }),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    /// Takes over what is no part of a study's identity and may be another than when it began.
    async fn note_definition(
        &self,
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
            .map_err(|error| self.error(error))
    }

    async fn note_machine_and_sampler(
        &self,
        connection: &mut SqliteConnection,
        id: StudyId,
        record: &StudyRecord,
        resumed: bool,
    ) -> Result<(), StoreError> {
        let machine = match &record.machine {
            Some(machine) => Some(self.machine_id(connection, machine).await?),
            None => None,
        };
        let data_set = match &record.data_set {
            Some(data_set) => Some(self.data_set_id(connection, data_set).await?),
            None => None,
        };
        sqlx::query(
            "update study
             set machine_id = ?, data_set_id = coalesce(?, data_set_id), sampler = ?, space_path = ?, space_text = ?,
                 resumed_at = iif(?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), resumed_at)
             where id = ?",
        )
        .bind(machine)
        .bind(data_set)
        .bind(&record.sampler)
        .bind(record.space_path.to_string_lossy())
        .bind(&record.space_text)
        .bind(resumed)
        .bind(id.0)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|error| self.error(error))
    }

    pub(super) async fn machine_id(
        &self,
        connection: &mut SqliteConnection,
        machine: &MachineRecord,
    ) -> Result<i64, StoreError> {
        // An update that changes nothing, so that a row that is already there returns its id too.
        sqlx::query_scalar(
            "insert into machine (host, os, cpu, cpu_cores, memory_bytes, device, device_memory_bytes, driver)
             values (?, ?, ?, ?, ?, ?, ?, ?)
             on conflict do update set host = excluded.host
             returning id",
        )
        .bind(&machine.host)
        .bind(&machine.os)
        .bind(&machine.cpu)
        .bind(to_i64(machine.cpu_cores)?)
        .bind(to_i64(machine.memory_bytes)?)
        .bind(&machine.device)
        .bind(to_i64(machine.device_memory_bytes)?)
        .bind(&machine.driver)
        .fetch_one(connection)
        .await
        .map_err(|error| self.error(error))
    }

    async fn model_id(&self, connection: &mut SqliteConnection, model: &ModelRecord) -> Result<i64, StoreError> {
        sqlx::query_scalar(
            "insert into model (source, fingerprint, architecture, parameters) values (?, ?, ?, ?)
             on conflict do update set source = excluded.source
             returning id",
        )
        .bind(&model.source)
        .bind(&model.fingerprint)
        .bind(&model.architecture)
        .bind(model.parameters.map(to_i64).transpose()?)
        .fetch_one(connection)
        .await
        .map_err(|error| self.error(error))
    }

    async fn data_set_id(
        &self,
        connection: &mut SqliteConnection,
        data_set: &DataSetRecord,
    ) -> Result<i64, StoreError> {
        let id: i64 = sqlx::query_scalar(
            "insert into data_set (source, fingerprint, rows, tokens, held_out_rows) values (?, ?, ?, ?, ?)
             on conflict do update set rows = excluded.rows, tokens = excluded.tokens, held_out_rows = excluded.held_out_rows
             returning id",
        )
        .bind(&data_set.source)
        .bind(&data_set.fingerprint)
        .bind(data_set.rows.map(to_i64).transpose()?)
        .bind(data_set.tokens.map(to_i64).transpose()?)
        .bind(data_set.held_out_rows.map(to_i64).transpose()?)
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| self.error(error))?;
        if let Some(learnt) = &data_set.learnt {
            sqlx::query("insert or replace into data_learnt (data_set_id, summary) values (?, ?)")
                .bind(id)
                .bind(learnt)
                .execute(connection)
                .await
                .map_err(|error| self.error(error))?;
        }
        Ok(id)
    }
}

/// What of a definition decides whether a study is the same: all but how far its ranges may be widened, which changes no trial.
fn identity_of(definition: &serde_json::Value) -> serde_json::Value {
    let mut identity = definition.clone();
    let parameters = identity.pointer_mut("/settings/space/parameters");
    let parameters = parameters.and_then(serde_json::Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter_map(|one| one.as_object_mut()) {
        parameter.remove("widest");
    }
    identity
}

/// Where a definition says that files lie.
const PLACES: [&str; 5] = [
    "/settings/base/model",
    "/settings/base/data/train",
    "/settings/base/data/held_out",
    "/settings/base/data/chat_template",
    "/settings/backend/folder",
];

/// A definition without what says where its files lie; a fraction of held-out rows stays.
fn without_places(mut definition: serde_json::Value) -> serde_json::Value {
    for place in PLACES {
        if let Some(value) = definition.pointer_mut(place).filter(|value| is_place(value)) {
            *value = serde_json::Value::Bool(true);
        }
    }
    definition
}

/// Whether a value names files: a fraction of the rows does not.
fn is_place(value: &serde_json::Value) -> bool {
    !value.is_number() && !value.is_null()
}
