//! Queries of the user's own SQL, on a connection that cannot write.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use futures_util::{Stream, StreamExt};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Column, Executor, Row, SqlSafeStr, Statement, TypeInfo, ValueRef};

use super::statement::{check_reading, writing_word};
use super::{QueryError, Store, StoreError};

/// How often a stream of rows is asked before its reader waits.
const LOOKS: u32 = 200;

/// One value of a result, of whichever type it has.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

/// Takes a result row by row, so that a million rows need no memory.
pub trait RowSink {
    /// Called once, before the rows.
    ///
    /// # Errors
    /// Where the names cannot be written; the query then ends.
    fn columns(&mut self, names: &[String]) -> io::Result<()>;

    /// Called for each row, with a value for each column.
    ///
    /// # Errors
    /// Where the row cannot be written; the query then ends.
    fn row(&mut self, values: Vec<SqlValue>) -> io::Result<()>;
}

impl Store {
    /// Runs one statement that reads and hands its rows to `sink`. Meant for a store from [`Store::open_read_only`].
    ///
    /// # Errors
    /// [`StoreError::Query`] where the statement writes, attaches another file, is not exactly one or is refused by
    /// SQLite; the message then points at the place.
    pub async fn query(&self, sql: &str, sink: &mut dyn RowSink) -> Result<(), StoreError> {
        self.query_about(sql, None, sink).await
    }

    /// As [`Store::query`], with a study's name as the statement's parameter `?1`.
    ///
    /// # Errors
    /// As [`Store::query`].
    pub async fn query_about(&self, sql: &str, study: Option<&str>, sink: &mut dyn RowSink) -> Result<(), StoreError> {
        // Trimmed as the driver does, so that offsets mean the same text.
        let sql = sql.trim();
        check_reading(sql)?;
        let mut connection = self.pool.acquire().await.map_err(|error| self.error(error))?;
        let text = AssertSqlSafe(sql.to_owned()).into_sql_str();
        let statement = match (&mut *connection).prepare(text).await {
            Ok(statement) => statement,
            Err(error) => return Err(self.refusal(&mut connection, sql, error).await),
        };
        let count = statement
            .parameters()
            .map_or(0, |parameters| parameters.map_left(<[_]>::len).into_inner());
        if count > usize::from(study.is_some()) {
            return Err(QueryError::Parameters { count }.into());
        }
        let names: Vec<String> = statement
            .columns()
            .iter()
            .map(|column| column.name().to_owned())
            .collect();
        sink.columns(&names).map_err(QueryError::Output)?;
        let outcome = hand_over(&mut connection, statement, study.filter(|_| count > 0), sink).await;
        match outcome {
            Ok(written) => Ok(written.map_err(QueryError::Output)?),
            Err(error) => Err(self.refusal(&mut connection, sql, error).await),
        }
    }

    /// The error for a statement that SQLite refused.
    async fn refusal(&self, connection: &mut SqliteConnection, sql: &str, error: sqlx::Error) -> StoreError {
        // Read before any other statement, which would overwrite it.
        let offset = error_offset(connection).await;
        let code = super::error::sqlite_code(&error).map_or(0, |code| code & 0xff);
        let message = match error.as_database_error() {
            // A logic error, a type mismatch or a number out of range is about the query; others are about the file.
            Some(database) if matches!(code, 1 | 18 | 20 | 25) => database.message().to_owned(),
            Some(_) if code == 8 => {
                return QueryError::NotReading {
                    keyword: writing_word(sql),
                }
                .into();
            }
            _ => return self.error(error),
        };
        let hint = self.hint(connection, &message).await;
        QueryError::Sql {
            message,
            sql: sql.to_owned(),
            offset,
            hint,
        }
        .into()
    }

    /// What to try where a table is not there: the nearest name, or all of them.
    async fn hint(&self, connection: &mut SqliteConnection, message: &str) -> Option<String> {
        let wanted = message.strip_prefix("no such table: ")?;
        let names: Vec<String> = sqlx::query_scalar(
            "select name from sqlite_schema
             where type in ('table', 'view') and name not like 'sqlite\\_%' escape '\\' and name <> '_sqlx_migrations'
             order by name",
        )
        .fetch_all(connection)
        .await
        .ok()?;
        let nearest = names
            .iter()
            .map(|name| (strsim::jaro_winkler(name, wanted), name))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        Some(match nearest {
            Some((_, name)) => format!("did you mean `{name}`?"),
            None => format!("tables and views: {}", names.join(", ")),
        })
    }
}

/// Runs a prepared statement. The outer error is SQLite's, the inner the sink's.
async fn hand_over(
    connection: &mut SqliteConnection,
    statement: sqlx::sqlite::SqliteStatement,
    study: Option<&str>,
    sink: &mut dyn RowSink,
) -> Result<io::Result<()>, sqlx::Error> {
    let query = statement.query();
    let query = match study {
        Some(study) => query.bind(study),
        None => query,
    };
    let mut rows = query.fetch(connection);
    while let Some(row) = next_row(&mut rows).await? {
        if let Err(error) = sink.row(values(&row)?) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// The next row, from the thread on which SQLite runs. A row comes within a microsecond of the one before it, and to sleep
/// and be woken takes several: so the stream is asked a few times before this task waits.
async fn next_row(
    rows: &mut (impl Stream<Item = Result<SqliteRow, sqlx::Error>> + Unpin),
) -> Result<Option<SqliteRow>, sqlx::Error> {
    let row = poll_fn(|context| {
        for _ in 0..LOOKS {
            if let Poll::Ready(row) = rows.poll_next_unpin(context) {
                return Poll::Ready(row);
            }
            std::hint::spin_loop();
        }
        Poll::Pending
    });
    row.await.transpose()
}

/// The values of a row, by the type that each really has: SQLite's columns promise none.
fn values(row: &SqliteRow) -> Result<Vec<SqlValue>, sqlx::Error> {
    (0..row.len())
        .map(|index| {
            let value = row.try_get_raw(index)?;
            if value.is_null() {
                return Ok(SqlValue::Null);
            }
            let kind = value.type_info();
            Ok(match kind.name() {
                "INTEGER" => SqlValue::Integer(row.try_get_unchecked(index)?),
                "REAL" => SqlValue::Real(row.try_get_unchecked(index)?),
                "BLOB" => SqlValue::Blob(row.try_get_unchecked(index)?),
                // Text need not be UTF-8 in SQLite.
                _ => {
                    let bytes: Vec<u8> = row.try_get_unchecked(index)?;
                    SqlValue::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            })
        })
        .collect()
}

/// Byte of the SQL text that the last error is about, which the driver does not pass on.
async fn error_offset(connection: &mut SqliteConnection) -> Option<usize> {
    let mut handle = connection.lock_handle().await.ok()?;
    // SAFETY: the handle is of an open connection, and the guard keeps its thread from using it meanwhile.
    let offset = unsafe { libsqlite3_sys::sqlite3_error_offset(handle.as_raw_handle().as_ptr()) };
    usize::try_from(offset).ok()
}
