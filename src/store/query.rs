//! Queries of the user's own SQL, on a connection that cannot write.

use std::borrow::Cow;
use std::io;

use sqlx::sqlite::{LockedSqliteHandle, SqliteConnection};

use super::rows::{Refusal, Statement};
use super::statement::{check_reading, writing_word};
use super::{QueryError, Store, StoreError};

/// One value of a result, of whichever type it has; text and blobs may be borrowed from the row.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Blob(Cow<'a, [u8]>),
}

impl SqlValue<'_> {
    /// The value with text and blobs of its own.
    pub fn into_owned(self) -> SqlValue<'static> {
        match self {
            Self::Null => SqlValue::Null,
            Self::Integer(value) => SqlValue::Integer(value),
            Self::Real(value) => SqlValue::Real(value),
            Self::Text(text) => SqlValue::Text(Cow::Owned(text.into_owned())),
            Self::Blob(bytes) => SqlValue::Blob(Cow::Owned(bytes.into_owned())),
        }
    }
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
    fn row(&mut self, values: &[SqlValue<'_>]) -> io::Result<()>;
}

impl Store {
    /// Runs one statement that reads and hands its rows to `sink`, on the calling thread, which does nothing else until the
    /// last row. Meant for a store from [`Store::open_read_only`].
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
        let sql = sql.trim();
        check_reading(sql)?;
        let mut connection = self.pool.acquire().await.map_err(|error| self.error(error))?;
        let outcome = {
            let mut handle = connection.lock_handle().await.map_err(|error| self.error(error))?;
            hand_over(&mut handle, sql, study, sink)
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(Stop::Query(error)) => Err(error.into()),
            Err(Stop::Refused(refusal)) => Err(self.refusal(&mut connection, sql, refusal).await),
        }
    }

    /// The error for a statement that SQLite refused.
    async fn refusal(&self, connection: &mut SqliteConnection, sql: &str, refusal: Refusal) -> StoreError {
        let Refusal { code, message, offset } = refusal;
        match code & 0xff {
            // A logic error, a type mismatch or a number out of range is about the query; others are about the file.
            1 | 18 | 20 | 25 => {}
            8 => {
                let keyword = writing_word(sql);
                return QueryError::NotReading { keyword }.into();
            }
            _ => return StoreError::from_code(&self.path, code, message),
        }
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

/// Why a query ended before its last row.
enum Stop {
    /// SQLite refused it.
    Refused(Refusal),
    /// Its parameters, or the sink.
    Query(QueryError),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Query(QueryError::Output(error))
    }
}

/// Runs a statement, with `study` as its parameter where it has one, and hands its rows over.
fn hand_over(
    connection: &mut LockedSqliteHandle<'_>,
    sql: &str,
    study: Option<&str>,
    sink: &mut dyn RowSink,
) -> Result<(), Stop> {
    let mut statement = Statement::prepare(connection, sql)?;
    match (statement.parameters(), study) {
        (0, _) => {}
        (1, Some(study)) => statement.bind(study)?,
        (count, _) => return Err(Stop::Query(QueryError::Parameters { count })),
    }
    sink.columns(&statement.names())?;
    while let Some(row) = statement.next()? {
        sink.row(&row.read())?;
    }
    Ok(())
}
