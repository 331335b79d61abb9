//! Studies: beginning, finding, renaming and deleting them, and which process runs them.

use std::time::SystemTime;

use sqlx::SqliteConnection;

use super::definitions;
use crate::space::BackendKind;
use crate::store::file::lock::{LockAttempt, StudyLock, has_no_locks, is_held, lock_path};
use crate::store::row::to_u64;
use crate::store::{FINDS_LENGTH, PRICE, Store, StoreError, StudyId, StudyOverview, StudyRecord};
use peft_tune_core::recipe::TrainedRows;
use peft_tune_core::study::TrialNumber;

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
    /// Lock of the study, which is dropped with it.
    lock: StudyLock,
}

impl OpenStudy {
    /// The lock of the study.
    pub fn lock(&self) -> &StudyLock {
        &self.lock
    }
}

/// The process that runs a study, as its lock names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner {
    pub process: u32,
    pub since: SystemTime,
}

#[derive(sqlx::FromRow)]
struct StudyRow {
    id: i64,
    name: String,
    space_path: String,
    sampler: String,
    seed: i64,
    model: Option<String>,
    backend: String,
    finds_length: bool,
    price: Option<String>,
    rows: Option<i64>,
    tokens: Option<i64>,
    learnt: Option<String>,
    created_at: String,
    resumed_at: Option<String>,
    wall_s: f64,
}

/// Studies: beginning, finding, renaming and deleting them.
#[derive(Clone, Copy, Debug)]
pub struct Studies<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Studies<'_> {
    /// Begins a study, or resumes it where the database has one of the same name and definition, and locks it.
    ///
    /// # Errors
    /// [`StoreError::StudyChanged`] where the name is taken by another definition, [`StoreError::StudyRunning`] where
    /// another process runs it, [`StoreError::TooManyObjectives`].
    pub async fn begin(self, record: &StudyRecord) -> Result<OpenStudy, StoreError> {
        if record.objectives.len() > MOST_OBJECTIVES {
            return Err(StoreError::TooManyObjectives {
                study: record.name.clone(),
                found: record.objectives.len(),
                most: MOST_OBJECTIVES,
            });
        }
        let definitions = self.store.definitions();
        let definition = definitions::whole(record)?;
        let (id, resumed) = definitions.find_or_insert(record, &definition).await?;
        let lock = self.lock(id, &record.name)?;
        let mut transaction = self.store.begin().await?;
        let to_repeat = self.store.trials().hand_back_running(&mut transaction, id).await?;
        definitions.note(&mut transaction, id, &definition).await?;
        self.note_machine_and_sampler(&mut transaction, id, record, resumed)
            .await?;
        self.store.commit(transaction).await?;
        Ok(OpenStudy {
            id,
            resumed,
            to_repeat,
            lock,
        })
    }

    /// Locks a study for this process.
    ///
    /// # Errors
    /// [`StoreError::StudyRunning`] where another process runs it; where there are no locks.
    fn lock(self, id: StudyId, name: &str) -> Result<StudyLock, StoreError> {
        let path = lock_path(&self.store.path, id.0);
        match StudyLock::try_at(&path) {
            Ok(LockAttempt::Locked(lock)) => Ok(lock),
            Ok(LockAttempt::HeldBy(process)) => Err(StoreError::StudyRunning {
                study: name.to_owned(),
                process,
            }),
            Err(error) if has_no_locks(&error) => Err(StoreError::NoLocks {
                path: self.store.path.clone(),
            }),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    /// Takes over the machine, the sampler, the data and the file that a study goes on with.
    async fn note_machine_and_sampler(
        self,
        connection: &mut SqliteConnection,
        id: StudyId,
        record: &StudyRecord,
        resumed: bool,
    ) -> Result<(), StoreError> {
        let machine = match &record.machine {
            Some(machine) => Some(self.store.facts().machine_id(connection, machine).await?),
            None => None,
        };
        let data_set = match &record.data_set {
            Some(data_set) => Some(self.store.facts().data_set_id(connection, data_set).await?),
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
        .map_err(|error| self.store.error(error))
    }

    /// Every study, the latest last.
    pub async fn all(self) -> Result<Vec<StudyOverview>, StoreError> {
        let rows: Vec<StudyRow> = sqlx::query_as(
            "select study.id, name, space_path, sampler, seed, model.source as model,
                    case when definition ->> '$.settings.backend.command' is not null then 'command'
                         when definition ->> '$.settings.backend.trl' is not null then 'trl'
                         when definition ->> '$.settings.backend.unsloth' is not null then 'unsloth'
                         else 'native' end as backend,
                    definition ->> ('$.settings.' || ?) is not null as finds_length,
                    definition -> ('$.settings.' || ?) as price,
                    rows, tokens, summary as learnt, created_at, resumed_at,
                    (select total(wall_s) from trial where study_id = study.id) as wall_s
             from study left join model on model.id = study.model_id
                        left join data_set on data_set.id = study.data_set_id
                        left join data_learnt on data_learnt.data_set_id = study.data_set_id
             order by coalesce(resumed_at, created_at), study.id",
        )
        .bind(FINDS_LENGTH)
        .bind(PRICE)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
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
    pub async fn find(self, name: Option<&str>) -> Result<StudyOverview, StoreError> {
        let mut studies = self.all().await?;
        let Some(latest) = studies.pop() else {
            return Err(StoreError::Empty {
                path: self.store.path.clone(),
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
            path: self.store.path.clone(),
            known: known.join(", "),
        })
    }

    async fn overview(self, row: StudyRow) -> Result<StudyOverview, StoreError> {
        let states: Vec<(String, i64)> =
            sqlx::query_as("select state, count(*) from trial where study_id = ? group by state")
                .bind(row.id)
                .fetch_all(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        Ok(StudyOverview {
            id: StudyId(row.id),
            variants: self.store.inheritance().variants(StudyId(row.id)).await?.len() as u64,
            objectives: self.store.definitions().objectives(StudyId(row.id)).await?,
            constraints: self.store.definitions().constraints(StudyId(row.id)).await?,
            target: self.store.inputs().target(StudyId(row.id)).await?,
            name: row.name,
            space_path: row.space_path.into(),
            sampler: row.sampler,
            seed: row.seed.cast_unsigned(),
            model: row.model,
            backend: BackendKind::from_name(&row.backend).unwrap_or(BackendKind::Native),
            finds_length: row.finds_length,
            // A price of another form, as a file from someone else may have it, is none.
            price: row.price.and_then(|price| serde_json::from_str(&price).ok()),
            trained: row.rows.zip(row.tokens).map(|(rows, tokens)| TrainedRows {
                rows: to_u64(rows),
                tokens: to_u64(tokens),
            }),
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

    /// Gives a study another name.
    ///
    /// # Errors
    /// Where the name is taken, another process runs the study, or the database cannot be written.
    pub async fn rename(self, study: StudyId, name: &str) -> Result<(), StoreError> {
        let _lock = self.lock(study, name)?;
        sqlx::query("update study set name = ? where id = ?")
            .bind(name)
            .bind(study.0)
            .execute(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// Deletes a study with all its trials; no other study is touched. The room in the file is used again, and given
    /// back by [`crate::store::vacuum()`].
    ///
    /// # Errors
    /// [`StoreError::StudyRunning`] where a search runs it, [`StoreError::NoLocks`] where there are no locks; the study is then
    /// whole.
    pub async fn delete(self, study: StudyId, name: &str) -> Result<(), StoreError> {
        let _lock = self.lock(study, name)?;
        let mut transaction = self.store.begin().await?;
        sqlx::query("delete from study where id = ?")
            .bind(study.0)
            .execute(&mut *transaction)
            .await
            .map_err(|error| self.store.error(error))?;
        self.store.facts().delete_unused(&mut transaction).await?;
        self.store.commit(transaction).await
    }

    /// The process that the study's lock names. A killed process leaves its lock file: ask the system whether it lives.
    pub fn runner(self, study: StudyId) -> Option<Runner> {
        let path = lock_path(&self.store.path, study.0);
        let process = std::fs::read_to_string(&path).ok()?.parse().ok()?;
        let since = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        Some(Runner { process, since })
    }

    /// The process that runs the study now: its lock is held, so it lives.
    pub fn live_runner(self, study: StudyId) -> Option<Runner> {
        is_held(&lock_path(&self.store.path, study.0)).then(|| self.runner(study))?
    }
}
