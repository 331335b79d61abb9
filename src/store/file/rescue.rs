//! A database whose file was removed or replaced while it was open. SQLite goes on writing into the file without a name, and what
//! it writes is gone with the process: so this is noticed behind each commit, and all there is goes to another file.

use std::path::{Path, PathBuf};

use sqlx::{Sqlite, Transaction};

use super::file_identity::FileIdentity;
use crate::store::{Store, StoreError};

/// Number of names that are tried for the file that keeps the database.
const NAMES: u32 = 100;

impl Store {
    /// Commits, and makes sure that the file is still the one at its path.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] beside errors of the commit.
    pub(in crate::store) async fn commit(&self, transaction: Transaction<'static, Sqlite>) -> Result<(), StoreError> {
        transaction.commit().await.map_err(|error| self.error(error))?;
        self.check_in_place().await
    }

    /// Makes sure that what was written lies at the database's path.
    ///
    /// # Errors
    /// [`StoreError::Replaced`]; all that was written is then in another file, where one can be made.
    pub(super) async fn check_in_place(&self) -> Result<(), StoreError> {
        let Some(identity) = self
            .identity
            .filter(|identity| FileIdentity::at(&self.path) != Some(*identity))
        else {
            return Ok(());
        };
        tracing::error!(?identity, path = %self.path.display(), "the database's file was removed or replaced");
        Err(StoreError::Replaced {
            path: self.path.clone(),
            kept: self.write_elsewhere().await,
        })
    }

    /// Writes the whole database to a new file beside its path, or into the folder for temporary files; `None` where neither
    /// can be written.
    async fn write_elsewhere(&self) -> Option<PathBuf> {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let beside = self.path.parent().map(Path::to_path_buf);
        for folder in beside.into_iter().chain([std::env::temp_dir()]) {
            for number in 1..=NAMES {
                let path = folder.join(format!("{name}.kept-{number}.db"));
                if path.exists() {
                    continue;
                }
                let written = sqlx::query("vacuum into ?")
                    .bind(path.to_string_lossy())
                    .execute(&self.pool)
                    .await;
                match written {
                    Ok(_) => return Some(path),
                    Err(error) => {
                        tracing::error!(%error, path = %path.display(), "the database cannot be kept there");
                        break;
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_is_removed_or_replaced_is_kept_elsewhere() {
        for replace in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.db");
            let store = Store::open(&path).await.unwrap();
            std::fs::remove_file(&path).unwrap();
            if replace {
                let other = folder.path().join("other.db");
                Store::open(&other).await.unwrap().close().await.unwrap();
                std::fs::rename(other, &path).unwrap();
            }
            let mut transaction = store.begin().await.unwrap();
            sqlx::query("insert into note (name, value) values ('a', 'b')")
                .execute(&mut *transaction)
                .await
                .unwrap();
            let error = store.commit(transaction).await.unwrap_err();
            let StoreError::Replaced { kept: Some(kept), .. } = error else {
                panic!("{error}");
            };
            let kept = Store::open_read_only(&kept).await.unwrap();
            let value: String = sqlx::query_scalar("select value from note where name = 'a'")
                .fetch_one(&kept.pool)
                .await
                .unwrap();
            assert_eq!(value, "b");
            assert!(matches!(store.close().await, Err(StoreError::Replaced { .. })));
        }
    }

    #[tokio::test]
    async fn a_second_name_of_a_database_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Store::open(&path).await.unwrap().close().await.unwrap();
        let second = folder.path().join("b.db");
        std::fs::hard_link(&path, &second).unwrap();
        for name in [&path, &second] {
            let error = Store::open(name).await.unwrap_err();
            assert!(matches!(error, StoreError::HardLinked { links: 2, .. }), "{error}");
        }
        Store::open_read_only(&second).await.unwrap().close().await.unwrap();
    }
}
