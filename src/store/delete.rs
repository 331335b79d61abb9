//! Removing studies, and giving back the room that they took.

use super::lock::{Attempt, StudyLock, lock_path};
use super::{Store, StoreError, StudyId};

/// Tables of facts that studies and trials share, each with the columns that refer to it.
const SHARED: [(&str, &str); 3] = [
    (
        "machine",
        "delete from machine where not exists (select 1 from study where machine_id = machine.id)
         and not exists (select 1 from trial where machine_id = machine.id)",
    ),
    (
        "model",
        "delete from model where not exists (select 1 from study where model_id = model.id)",
    ),
    (
        "data_set",
        "delete from data_set where not exists (select 1 from study where data_set_id = data_set.id)",
    ),
];

/// Size of a database's file before and after it was made smaller, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacuumed {
    pub before_bytes: u64,
    pub after_bytes: u64,
}

impl Store {
    /// Deletes a study with all its trials; no other study is touched. The room in the file is used again, and given
    /// back by [`Store::vacuum`].
    ///
    /// # Errors
    /// [`StoreError::StudyRunning`] where a search runs it; the study is then whole.
    pub async fn delete_study(&self, study: StudyId, name: &str) -> Result<(), StoreError> {
        let path = lock_path(&self.path, study.0);
        let _lock = match StudyLock::try_at(&path) {
            Ok(Attempt::Locked(lock)) => lock,
            Ok(Attempt::HeldBy(process)) => {
                return Err(StoreError::StudyRunning {
                    study: name.to_owned(),
                    process,
                });
            }
            Err(source) => return Err(StoreError::Io { path, source }),
        };
        let mut transaction = self.begin().await?;
        sqlx::query("delete from study where id = ?")
            .bind(study.0)
            .execute(&mut *transaction)
            .await
            .map_err(|error| self.error(error))?;
        for (_, sweep) in SHARED {
            // Facts that a later table refers to as well stay: a foreign key that would break is not an error here.
            let swept = sqlx::query(sweep).execute(&mut *transaction).await;
            match swept {
                Err(error) if !is_constraint(&error) => return Err(self.error(error)),
                _ => {}
            }
        }
        self.commit(transaction).await
    }

    /// Checks the whole file, rewrites it without gaps and renews the statistics that queries are planned by.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where the check fails; the file is then as it was. [`StoreError::Locked`] while another
    /// process has it open.
    pub async fn vacuum(&self) -> Result<Vacuumed, StoreError> {
        let before_bytes = self.file_bytes();
        let verdict: String = sqlx::query_scalar("pragma integrity_check(1)")
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        if verdict != "ok" {
            return Err(StoreError::Corrupt {
                path: self.path.clone(),
                detail: verdict,
            });
        }
        for statement in ["vacuum", "analyze", "pragma wal_checkpoint(truncate)"] {
            sqlx::query(statement)
                .execute(&self.pool)
                .await
                .map_err(|error| self.error(error))?;
        }
        Ok(Vacuumed {
            before_bytes,
            after_bytes: self.file_bytes(),
        })
    }

    fn file_bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }
}

/// Whether SQLite refused because something still refers to the row.
fn is_constraint(error: &sqlx::Error) -> bool {
    super::error::sqlite_code(error).is_some_and(|code| code & 0xff == 19)
}
