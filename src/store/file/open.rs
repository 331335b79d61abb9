//! Opening the database: the checks before a byte is written, the connection's settings, the schema.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sqlx::ConnectOptions;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

use super::file_identity::FileIdentity;
use super::files::{self, Found, Stamp};
use super::lock::{LockAttempt, StudyLock, has_no_locks, lock_path};
use crate::store::StoreError;
use crate::store::error::sqlite_code;
use crate::store::trial::step_buffer::StepBuffer;

static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// `pragma application_id` of our files, as the schema sets it.
const APPLICATION_ID: i64 = 1_886_680_430;

/// Longest wait of a statement for another process to finish its transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Rows that the connection's thread reads ahead of who takes them: fewer make the two wait for each other.
const ROWS_AHEAD: usize = 1024;

/// Files up to this size are checked page by page before they are written to: about a second.
const CHECK_UP_TO_BYTES: u64 = 512 << 20;

/// An open results database.
///
/// One connection, which writers and readers of this process take in turn: SQLite has one writer anyway, and so no
/// statement of ours ever waits for another of ours. Other processes read at any time without stopping the writer.
#[derive(Debug)]
pub struct Store {
    pub(in crate::store) pool: SqlitePool,
    pub(in crate::store) path: PathBuf,
    /// Steps that wait to be written.
    pub(in crate::store) step_buffer: Mutex<StepBuffer>,
    /// The file as it was when it was opened on the promise that nobody writes it.
    taken_as_unchanging: Option<Stamp>,
    /// Identity of the file that is written.
    pub(super) identity: Option<FileIdentity>,
}

/// The schema that an existing file turned out to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schema {
    version: i64,
}

impl Store {
    /// Opens the database at `path` for reading and writing, creating it where needed.
    ///
    /// # Errors
    /// Where `path` is not a database of ours, is damaged, has the layout of another version, cannot be written or is
    /// locked; the file is then as it was.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_within(path, BUSY_TIMEOUT).await
    }

    /// Opens an existing database for reading only, and leaves nothing beside it. Sees what another process writes
    /// meanwhile if that had started before; [`Store::close`] tells if it began later.
    ///
    /// # Errors
    /// Errors of [`Store::open`]; there is no database.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let path = files::resolve(path)?;
        match files::look_at(&path)? {
            Found::Nothing => return Err(StoreError::Missing { path }),
            Found::EmptyFile => return Err(StoreError::Empty { path }),
            Found::Sqlite => {}
        }
        let store = Self::connect_to_read(path).await?;
        match store.schema().await?.version {
            0 => Err(StoreError::Empty { path: store.path }),
            _ => Ok(store),
        }
    }

    /// Writes what is still waiting and closes the file; the last one to close it merges and removes the write-ahead
    /// log.
    ///
    /// # Errors
    /// Where writing fails, or [`StoreError::ChangedWhileRead`].
    pub async fn close(self) -> Result<(), StoreError> {
        self.steps().flush().await?;
        self.check_in_place().await?;
        self.pool.close().await;
        let Some(before) = &self.taken_as_unchanging else {
            return Ok(());
        };
        let unchanged = files::journal_bytes(&self.path).is_none_or(|bytes| bytes == 0)
            && files::stamp(&self.path).is_ok_and(|now| now == *before);
        if unchanged {
            Ok(())
        } else {
            Err(StoreError::ChangedWhileRead { path: self.path })
        }
    }

    /// The database's file, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number that changes when another process (or another connection) has written to the database.
    pub async fn change_mark(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar("pragma data_version")
            .fetch_one(&self.pool)
            .await
            .map_err(|error| self.error(error))
    }

    /// The error for a failed statement on this database.
    pub(in crate::store) fn error(&self, source: sqlx::Error) -> StoreError {
        StoreError::from_sqlx(&self.path, source)
    }

    /// Reads a JSON column; `what` names it in the error.
    pub(in crate::store) fn read_json<T: serde::de::DeserializeOwned>(
        &self,
        json: &str,
        what: impl FnOnce() -> String,
    ) -> Result<T, StoreError> {
        serde_json::from_str(json).map_err(|source| StoreError::Unreadable {
            path: self.path.clone(),
            what: what(),
            source,
        })
    }

    /// Starts a transaction that writes. It takes the write lock at once: one that reads first and then finds another
    /// writer ahead would have to start anew.
    pub(in crate::store) async fn begin(&self) -> Result<sqlx::Transaction<'static, sqlx::Sqlite>, StoreError> {
        self.pool
            .begin_with("begin immediate")
            .await
            .map_err(|error| self.error(error))
    }

    async fn open_within(path: &Path, timeout: Duration) -> Result<Self, StoreError> {
        let path = files::resolve(path)?;
        if files::look_at(&path)? == Found::Nothing && !files::has_folder(&path) {
            return Err(StoreError::NoFolder { path });
        }
        // Processes take turns from the first look to the last table: SQLite does not wait for a change of its
        // journal mode, and two could find the schema missing.
        let _turn = take_turn(&path, timeout).await?;
        let version = match files::look_at(&path)? {
            Found::Sqlite => {
                files::check_names(&path)?;
                Self::check_before_writing(&path).await?
            }
            Found::Nothing | Found::EmptyFile => 0,
        };
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .foreign_keys(true)
            .busy_timeout(timeout)
            .row_buffer_size(ROWS_AHEAD)
            // A commit is on the disk when it returns, so not even a power cut takes a finished trial. It costs
            // milliseconds where trials cost minutes.
            .pragma("synchronous", "full")
            .pragma("temp_store", "memory")
            // What a search writes it seldom reads again, and it should not grow with its study.
            .pragma("cache_size", "-4000");
        let mut store = Self::connect(options, path).await?;
        store.claim().await?;
        store.identity = FileIdentity::at(&store.path);
        if version < newest_schema() {
            MIGRATOR.run(&store.pool).await.map_err(|source| StoreError::Migrate {
                path: store.path.clone(),
                source,
            })?;
        }
        Ok(store)
    }

    async fn connect(options: SqliteConnectOptions, path: PathBuf) -> Result<Self, StoreError> {
        match pool(options).await {
            Ok(pool) => Ok(Self::new(pool, path, None)),
            Err(error) => Err(StoreError::from_sqlx(&path, error)),
        }
    }

    fn new(pool: SqlitePool, path: PathBuf, taken_as_unchanging: Option<Stamp>) -> Self {
        Self {
            pool,
            path,
            step_buffer: Mutex::default(),
            taken_as_unchanging,
            identity: None,
        }
    }

    /// Opens for reading: as unchanging where nobody has the file open, because SQLite otherwise makes the files of the
    /// write-ahead log and leaves them behind (or fails, in a folder that it cannot write).
    async fn connect_to_read(path: PathBuf) -> Result<Self, StoreError> {
        let journal = files::journal_bytes(&path);
        if journal.is_none() {
            return Self::connect_as_unchanging(path).await;
        }
        match readable_pool(reading(&path)).await {
            Ok(pool) => Ok(Self::new(pool, path, None)),
            // A read-only folder with the log of a process that is gone: without content it can be skipped.
            Err(error) if cannot_share(&error) && journal == Some(0) => Self::connect_as_unchanging(path).await,
            Err(error) if cannot_share(&error) => Err(StoreError::Unmerged { path }),
            Err(error) => Err(StoreError::from_sqlx(&path, error)),
        }
    }

    async fn connect_as_unchanging(path: PathBuf) -> Result<Self, StoreError> {
        let stamp = match files::stamp(&path) {
            Ok(stamp) => stamp,
            Err(source) => return Err(StoreError::Io { path, source }),
        };
        match readable_pool(reading(&path).immutable(true)).await {
            Ok(pool) => Ok(Self::new(pool, path, Some(stamp))),
            Err(error) => Err(StoreError::from_sqlx(&path, error)),
        }
    }

    /// Reads a file that is about to be written and returns its schema version.
    async fn check_before_writing(path: &Path) -> Result<i64, StoreError> {
        let reader = Self::connect_to_read(path.to_owned()).await?;
        let schema = reader.schema().await?;
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= CHECK_UP_TO_BYTES) {
            let verdict: String = sqlx::query_scalar("pragma quick_check(1)")
                .fetch_one(&reader.pool)
                .await
                .map_err(|error| reader.error(error))?;
            if verdict != "ok" {
                return Err(StoreError::Corrupt {
                    path: path.to_owned(),
                    detail: verdict,
                });
            }
        }
        reader.pool.close().await;
        Ok(schema.version)
    }

    /// Finds out whose database this is, and its version: 0 where it has no tables yet.
    async fn schema(&self) -> Result<Schema, StoreError> {
        let facts = async {
            let application: i64 = sqlx::query_scalar("pragma application_id")
                .fetch_one(&self.pool)
                .await?;
            let tables: Vec<String> = sqlx::query_scalar("select name from sqlite_schema where type = 'table'")
                .fetch_all(&self.pool)
                .await?;
            let version: i64 = if tables.iter().any(|table| table == "_sqlx_migrations") {
                sqlx::query_scalar("select coalesce(max(version), 0) from _sqlx_migrations")
                    .fetch_one(&self.pool)
                    .await?
            } else {
                0
            };
            Ok((application, tables, version))
        };
        let (application, tables, version) = facts.await.map_err(|error| self.error(error))?;
        let path = self.path.clone();
        // A process that was killed while it created the file may leave it without our mark, but then without tables.
        let just_created = application == 0 && tables.iter().all(|table| table == "_sqlx_migrations");
        if application != APPLICATION_ID && !just_created {
            return Err(StoreError::Foreign { path });
        }
        let (found, known) = (version, newest_schema());
        if found > known {
            return Err(StoreError::Newer { path, found, known });
        }
        // What a release wrote is to be migrated when it is written to: none has a layout before this one.
        if found != 0 && found < known {
            return Err(StoreError::Older { path, found, known });
        }
        Ok(Schema { version })
    }

    /// Makes sure that the file can be written now, and puts it into write-ahead mode.
    async fn claim(&self) -> Result<(), StoreError> {
        self.begin()
            .await?
            .rollback()
            .await
            .map_err(|error| self.error(error))?;
        sqlx::query("pragma journal_mode = wal")
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| self.error(error))
    }
}

/// Waits until no other process opens the database for writing.
async fn take_turn(path: &Path, timeout: Duration) -> Result<StudyLock, StoreError> {
    let started = Instant::now();
    loop {
        match StudyLock::try_at(&lock_path(path, 0)) {
            Ok(LockAttempt::Locked(lock)) => return Ok(lock),
            Ok(LockAttempt::HeldBy(_)) if started.elapsed() > timeout => {
                return Err(StoreError::Locked { path: path.to_owned() });
            }
            Ok(LockAttempt::HeldBy(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                return Err(StoreError::NotWritable { path: path.to_owned() });
            }
            Err(error) if has_no_locks(&error) => return Err(StoreError::NoLocks { path: path.to_owned() }),
            Err(source) => {
                return Err(StoreError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
}

/// A pool of one connection that stays open.
async fn pool(options: SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    // sqlx warns of statements that take over a second, as any may on a busy machine, with their whole text.
    let options = options.disable_statement_logging();
    SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_with(options)
        .await
}

/// A pool that has read from its file once, as opening alone does not touch it.
async fn readable_pool(options: SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    let pool = pool(options).await?;
    sqlx::query_scalar::<_, i64>("select count(*) from sqlite_schema")
        .fetch_one(&pool)
        .await?;
    Ok(pool)
}

/// The version of this program's schema: that of its last migration.
fn newest_schema() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Settings of a connection that cannot write, whatever is asked of it.
fn reading(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .row_buffer_size(ROWS_AHEAD)
        .pragma("query_only", "on")
        // A file from someone else may hold views that call functions: only harmless ones.
        .pragma("trusted_schema", "off")
        .pragma("temp_store", "memory")
        .pragma("cache_size", "-32000")
}

/// Whether SQLite could not make or read the memory that processes share in write-ahead mode.
fn cannot_share(error: &sqlx::Error) -> bool {
    // Cannot open; read-only while recovery is needed; read-only shared memory that is not there.
    matches!(sqlite_code(error), Some(14 | 264 | 1288))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_another_process_writes_is_locked_and_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Store::open(&path).await.unwrap().close().await.unwrap();
        let other = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&path))
            .await
            .unwrap();
        let held = other.begin_with("begin exclusive").await.unwrap();
        let error = Store::open_within(&path, Duration::from_millis(30)).await.unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error}");
        held.rollback().await.unwrap();
        other.close().await;
        Store::open(&path).await.unwrap().close().await.unwrap();
    }

    #[tokio::test]
    async fn a_search_that_starts_while_a_reader_takes_the_file_as_unchanging_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Store::open(&path).await.unwrap().close().await.unwrap();
        let reader = Store::open_read_only(&path).await.unwrap();
        assert!(reader.taken_as_unchanging.is_some());
        let writer = Store::open(&path).await.unwrap();
        sqlx::query("insert into note (name, value) values ('a', 'b')")
            .execute(&writer.pool)
            .await
            .unwrap();
        assert!(matches!(reader.close().await, Err(StoreError::ChangedWhileRead { .. })));
        writer.close().await.unwrap();
    }
}
