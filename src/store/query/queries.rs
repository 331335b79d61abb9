//! Queries of the user's own SQL, on a connection that cannot write.

use std::io;

use sqlx::sqlite::{LockedSqliteHandle, SqliteConnection};

use super::rows::{Prepared, Refusal, Statement};
use super::sql_value::SqlValue;
use crate::store::{QueryError, Store, StoreError};

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

/// Queries of the user's own SQL.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Queries<'_> {
    /// Runs one statement that reads, with the name of `study` as its parameter `?1`, and hands its rows to `sink`, on the calling
    /// thread, which does nothing else until the last row. Meant for a store from [`Store::open_read_only`].
    ///
    /// # Errors
    /// [`StoreError::Query`] where the statement writes, attaches another file, is not exactly one or is refused by
    /// SQLite; the message then points at the place.
    pub async fn run(self, sql: &str, study: Option<&str>, sink: &mut dyn RowSink) -> Result<(), StoreError> {
        let sql = sql.trim();
        let mut connection = self
            .store
            .pool
            .acquire()
            .await
            .map_err(|error| self.store.error(error))?;
        let outcome = {
            let mut handle = connection
                .lock_handle()
                .await
                .map_err(|error| self.store.error(error))?;
            hand_over(&mut handle, sql, study, sink)
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(Stop::Query(error)) => Err(error.into()),
            Err(Stop::Refused(refusal)) => Err(self.refusal(&mut connection, sql, refusal).await),
        }
    }

    /// The error for a statement that SQLite refused.
    async fn refusal(self, connection: &mut SqliteConnection, sql: &str, refusal: Refusal) -> StoreError {
        let Refusal {
            code,
            message,
            offset,
            not_reading,
        } = refusal;
        if let Some(keyword) = not_reading {
            return QueryError::NotReading { keyword }.into();
        }
        // A logic error, a type mismatch or a number out of range is about the query; others are about the file.
        if !matches!(code & 0xff, 1 | 18 | 20 | 25) {
            return StoreError::from_code(&self.store.path, code, message);
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

    /// A hint where a table is not there: the nearest name, or all names.
    async fn hint(self, connection: &mut SqliteConnection, message: &str) -> Option<String> {
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

/// Reason why a query ended before its last row.
enum Stop {
    /// SQLite refused the statement.
    Refused(Refusal),
    /// The statement's parameters or the sink failed.
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

/// Runs the one statement of `sql`, with `study` as its parameter where it has one, and hands its rows over.
fn hand_over(
    connection: &mut LockedSqliteHandle<'_>,
    sql: &str,
    study: Option<&str>,
    sink: &mut dyn RowSink,
) -> Result<(), Stop> {
    let only = only_statement(connection, sql)?;
    let Some(mut statement) = Statement::prepare(connection, only)?.statement else {
        return Err(Stop::Query(QueryError::Empty));
    };
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

/// The text of the one statement in `sql`, beside which there may be comments and semicolons.
fn only_statement<'a>(connection: &mut LockedSqliteHandle<'_>, sql: &'a str) -> Result<&'a str, Stop> {
    let (mut only, mut start) = (None, 0);
    while let Some(rest) = sql.get(start..).filter(|rest| !rest.is_empty()) {
        match Statement::prepare(connection, rest) {
            // SQLite reads no further than a zero.
            Ok(Prepared { length: 0, .. }) => return Err(zero_byte(start).into()),
            Ok(Prepared {
                statement: None,
                length,
            }) => start += length,
            Ok(Prepared { length, .. }) if only.is_none() => {
                only = rest.get(..length);
                start += length;
            }
            Err(refusal) if only.is_none() => {
                return Err(Stop::Refused(Refusal {
                    offset: refusal.offset.map(|offset| start + offset),
                    ..refusal
                }));
            }
            // Another statement, whether or not it is one that SQLite would take.
            Ok(_) | Err(_) => return Err(Stop::Query(QueryError::SeveralStatements)),
        }
    }
    only.ok_or(Stop::Query(QueryError::Empty))
}

fn zero_byte(offset: usize) -> Refusal {
    Refusal {
        code: 1,
        message: "a zero byte in the query".to_owned(),
        offset: Some(offset),
        not_reading: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl RowSink for Nothing {
        fn columns(&mut self, _: &[String]) -> io::Result<()> {
            Ok(())
        }

        fn row(&mut self, _: &[SqlValue<'_>]) -> io::Result<()> {
            Ok(())
        }
    }

    /// Outcome of each query on a database of its own, which is not written.
    async fn outcomes<'a>(queries: &[&'a str]) -> Vec<(&'a str, Result<(), String>)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Store::open(&path).await.unwrap().close().await.unwrap();
        let before = std::fs::read(&path).unwrap();
        let store = Store::open_read_only(&path).await.unwrap();
        let mut outcomes = Vec::new();
        for sql in queries {
            let outcome = store.queries().run(sql, None, &mut Nothing).await;
            outcomes.push((*sql, outcome.map_err(|error| error.to_string())));
        }
        store.close().await.unwrap();
        assert!(std::fs::read(&path).unwrap() == before);
        outcomes
    }

    #[tokio::test]
    async fn reading_statements_pass() {
        for (sql, outcome) in outcomes(&[
            "select 1",
            " SELECT 1 ; ",
            "; select 1",
            "-- a comment; with a semicolon\nselect 1;",
            "select 1; -- a comment; behind it",
            "/* a; b */ with a as (select ';') select * from a;",
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3) select * from n",
            "values (1), (2)",
            "explain query plan select 1",
            "select ';' as \"a;\"\"b\", 'it''s; one' as [c;d], 1 as `e;` from trial",
            "select * from pareto_front",
            "select * from json_each('[1, 2]')",
            "select * from pragma_table_info('trial')",
            "pragma integrity_check",
            "PRAGMA main.table_info(trial)",
            "pragma journal_mode;",
        ])
        .await
        {
            assert_eq!(outcome, Ok(()), "{sql}");
        }
    }

    #[tokio::test]
    async fn every_named_query_is_one_statement_that_reads() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        for named in crate::store::NamedQuery::all() {
            let outcome = store.queries().run(named.sql, Some("first"), &mut Nothing).await;
            assert!(outcome.is_ok(), "{}: {outcome:?}", named.name);
        }
        store.close().await.unwrap();
    }

    #[tokio::test]
    async fn what_does_not_only_read_is_named() {
        let named = [
            ("delete from trial", "delete"),
            ("explain delete from trial", "delete"),
            ("with a as (select 'delete') UPDATE trial set number = 1", "update"),
            ("replace into note (name, value) values ('a', 'b')", "insert"),
            ("create table x (y)", "create"),
            ("create temp table x (y)", "create"),
            ("drop table trial", "drop"),
            ("alter table trial rename to x", "alter"),
            ("attach 'other.db' as other", "attach"),
            ("explain attach 'other.db' as other", "attach"),
            ("detach main", "detach"),
            ("/* x */ VACUUM into 'copy.db'", "vacuum"),
            ("pragma journal_mode = delete", "pragma journal_mode"),
            ("pragma journal_mode(delete)", "pragma journal_mode"),
            ("pragma query_only = off", "pragma query_only"),
            ("explain pragma query_only = off", "pragma query_only"),
            ("begin", "begin"),
            ("savepoint x", "savepoint"),
        ];
        for ((sql, outcome), (_, word)) in outcomes(&named.map(|(sql, _)| sql)).await.into_iter().zip(named) {
            let told = outcome.unwrap_err();
            assert!(told.starts_with(&format!("`{word}` is not allowed")), "{sql}: {told}");
        }
    }

    #[tokio::test]
    async fn more_or_less_than_one_statement_is_refused() {
        let several = [
            "select 1; select 2",
            "select 1; drop table trial; --",
            "select 1; pragma query_only = off",
            "select 1; no statement",
        ];
        for (sql, outcome) in outcomes(&several).await {
            assert!(
                outcome.clone().unwrap_err().starts_with("several statements"),
                "{sql}: {outcome:?}"
            );
        }
        for (sql, outcome) in outcomes(&["", " ; ;", "-- nothing", "/* open"]).await {
            assert!(outcome.clone().unwrap_err().contains("empty"), "{sql}: {outcome:?}");
        }
        for (sql, outcome) in outcomes(&[
            "select 1\0; select 2",
            "\0",
            "select 'a; b",
            "pragma",
            "update sqlite_master set sql = ''",
        ])
        .await
        {
            assert!(outcome.is_err(), "{sql:?}");
        }
    }
}
