//! Errors of the results database.

use std::path::{Path, PathBuf};

/// A failed database operation. No variant leaves a half-written change behind.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no results database at {path}: run `peft-tune search` first, or name another file with `--db`")]
    Missing { path: PathBuf },
    #[error("the folder of the results database {path} does not exist: create it, or choose another file with `--db`")]
    NoFolder { path: PathBuf },
    #[error("{path} is not a results database: choose another file with `--db`")]
    NotADatabase { path: PathBuf },
    #[error("{path} is a database of another program: choose another file with `--db`")]
    Foreign { path: PathBuf },
    #[error("{path} was written by a newer peft-tune (schema {found}, this one knows {known}): update peft-tune")]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error(
        "{path} was written by an older peft-tune (schema {found}, this one needs {known}): \
         open it with the peft-tune that wrote it, or choose another file with `--db`"
    )]
    Older { path: PathBuf, found: i64, known: i64 },
    #[error("{path} is damaged ({detail}): restore a copy of it, or choose another file with `--db`")]
    Corrupt { path: PathBuf, detail: String },
    #[error("{path} or its folder cannot be written: change the permissions, or choose another file with `--db`")]
    NotWritable { path: PathBuf },
    #[error("{path} cannot be read: change the permissions, or choose another file with `--db`")]
    NotReadable { path: PathBuf },
    #[error(
        "{path} has changes in its -wal file that cannot be read in a read-only folder: \
         copy both files to a folder that can be written"
    )]
    Unmerged { path: PathBuf },
    #[error(
        "the file system that holds {path} has no locks, which keep two searches apart: put the database on a local disk \
         with `--db`"
    )]
    NoLocks { path: PathBuf },
    #[error("{path} is locked by another process: wait until that is done, or choose another file with `--db`")]
    Locked { path: PathBuf },
    #[error("the disk that holds {path} is full: free some space")]
    DiskFull { path: PathBuf },
    #[error(
        "{path} has {links} names (hard links), and two searches could write it at once: copy it to a file of its own \
         (`cp`), or remove the other names"
    )]
    HardLinked { path: PathBuf, links: u64 },
    #[error(
        "{path} was removed or replaced while it was written; {}",
        kept.as_ref().map_or_else(
            || "what was measured could not be kept in another file either".to_owned(),
            |kept| format!("all that was measured is in {}: go on with that by `--db`", kept.display())
        )
    )]
    Replaced { path: PathBuf, kept: Option<PathBuf> },
    #[error("{path} was changed by another process while it was read: run the command again")]
    ChangedWhileRead { path: PathBuf },

    #[error(
        "study `{study}` in {path} has another definition (different: {differences}): \
         give it a new name with `study:`, or choose another file with `--db`"
    )]
    StudyChanged {
        study: String,
        path: PathBuf,
        differences: String,
    },
    #[error("{path} has another study `{study}`: choose another file")]
    OptunaOther { path: PathBuf, study: String },
    #[error(
        "{path} is {}: choose another file",
        found.map_or_else(
            || "no storage of Optuna".to_owned(),
            |found| format!("a storage of another Optuna (schema {found}, this program writes 12)")
        )
    )]
    OptunaSchema { path: PathBuf, found: Option<i64> },
    #[error("study `{study}` is being run by process {process}: wait for it, or stop it first")]
    StudyRunning { study: String, process: String },
    #[error("no study `{study}` in {path}: it has {known}")]
    NoStudy {
        study: String,
        path: PathBuf,
        known: String,
    },
    #[error("{path} already has a study `{study}`: choose another name with `--as`")]
    NameTaken { study: String, path: PathBuf },
    #[error("{path} is the database to import into: name another file")]
    SameFile { path: PathBuf },
    #[error("{path} already exists: choose another folder with `--output`")]
    OptunaExists { path: PathBuf },
    #[error("{path} has no study yet: run `peft-tune search` first")]
    Empty { path: PathBuf },
    #[error("study `{study}` has no trial {trial}: it has {count}")]
    NoTrial { study: String, trial: u64, count: u64 },
    #[error("study `{study}` has {found} objectives: at most {most} can be compared")]
    TooManyObjectives { study: String, found: usize, most: usize },
    #[error("trial {trial} cannot become {wanted}: it is {found}")]
    WrongState {
        trial: u64,
        wanted: &'static str,
        found: String,
    },
    #[error("param `{name}` of trial {trial} is not a finite number")]
    NotFinite { trial: u64, name: String },
    #[error("number {number} is too large for the database")]
    NumberTooLarge { number: u64 },

    #[error("{path}: {what} cannot be read back: {source}")]
    Unreadable {
        path: PathBuf,
        what: String,
        source: serde_json::Error,
    },
    #[error("{what} cannot be written as JSON: {source}")]
    Unwritable {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: sqlx::Error },
    #[error("{path}: {message}")]
    Sqlite { path: PathBuf, message: String },
    #[error("cannot make the tables of {path}: {source}")]
    Migrate {
        path: PathBuf,
        source: sqlx::migrate::MigrateError,
    },
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// A query that the database refused.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("the query is empty: try `select * from trial_summary`")]
    Empty,
    #[error("several statements were given: give one at a time")]
    SeveralStatements,
    #[error(
        "`{keyword}` is not allowed: a query only reads (`select`, `with`, `values`, `explain`, \
         or a `pragma` that reads)"
    )]
    NotReading { keyword: String },
    #[error("the query has {count} parameter(s) (`?` or `:name`): write the values into it")]
    Parameters { count: usize },
    /// SQLite's own message, with the place it means.
    #[error("{message}{}{}", pointed(sql, *offset), hint.as_deref().map(|hint| format!("\n{hint}")).unwrap_or_default())]
    Sql {
        message: String,
        sql: String,
        /// Byte of `sql` that the message is about.
        offset: Option<usize>,
        /// A name to try instead.
        hint: Option<String>,
    },
    #[error("cannot write the result: {0}")]
    Output(#[source] std::io::Error),
}

impl StoreError {
    /// Whether the user named something that is not there or not usable, rather than something failing on the way.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::NoFolder { .. }
            | Self::NotADatabase { .. }
            | Self::Foreign { .. }
            | Self::Newer { .. }
            | Self::Older { .. }
            | Self::Corrupt { .. }
            | Self::NotWritable { .. }
            | Self::NotReadable { .. }
            | Self::Unmerged { .. }
            | Self::HardLinked { .. }
            | Self::NoLocks { .. }
            | Self::StudyChanged { .. }
            | Self::NoStudy { .. }
            | Self::Empty { .. }
            | Self::NameTaken { .. }
            | Self::SameFile { .. }
            | Self::OptunaExists { .. }
            | Self::NoTrial { .. }
            | Self::TooManyObjectives { .. } => true,
            Self::Query(error) => !matches!(error, QueryError::Output(_)),
            _ => false,
        }
    }

    /// Whether the database's file failed, rather than what was asked of it.
    pub fn is_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Locked { .. }
                | Self::DiskFull { .. }
                | Self::Io { .. }
                | Self::Database { .. }
                | Self::Sqlite { .. }
                | Self::Migrate { .. }
                | Self::ChangedWhileRead { .. }
                | Self::Replaced { .. }
        )
    }

    /// Turns a driver's error into one that says what to do, by SQLite's result code
    /// (<https://www.sqlite.org/rescode.html>).
    pub(super) fn from_sqlx(path: &Path, source: sqlx::Error) -> Self {
        let known = sqlite_code(&source).and_then(|code| Self::known(path, code));
        known.unwrap_or_else(|| Self::Database {
            path: path.to_owned(),
            source,
        })
    }

    /// Turns SQLite's own result code and message into an error that says what to do.
    pub(super) fn from_code(path: &Path, code: i32, message: String) -> Self {
        Self::known(path, code).unwrap_or_else(|| Self::Sqlite {
            path: path.to_owned(),
            message,
        })
    }

    fn known(path: &Path, code: i32) -> Option<Self> {
        let path = path.to_owned();
        Some(match code & 0xff {
            5 | 6 => Self::Locked { path },
            8 | 23 => Self::NotWritable { path },
            11 => Self::Corrupt {
                path,
                detail: "a page is not as it should be".to_owned(),
            },
            13 => Self::DiskFull { path },
            14 => Self::NotWritable { path },
            26 => Self::NotADatabase { path },
            _ => return None,
        })
    }
}

/// SQLite's extended result code of an error, where it comes from SQLite.
pub(super) fn sqlite_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// The line of `sql` that `offset` lies in, with a caret under it; empty where there is no offset.
fn pointed(sql: &str, offset: Option<usize>) -> String {
    /// Characters shown on either side of the caret.
    const AROUND: usize = 60;
    let Some(before) = offset.and_then(|offset| sql.get(..offset)) else {
        return String::new();
    };
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line_number = before.matches('\n').count() + 1;
    let line = sql[line_start..].lines().next().unwrap_or_default();
    let column = before[line_start..].chars().count();
    let first = column.saturating_sub(AROUND);
    let shown: String = line
        .chars()
        .skip(first)
        .take(2 * AROUND)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let caret = " ".repeat(column - first);
    format!(" (line {line_number}, column {})\n  {shown}\n  {caret}^", column + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(sql: &str, offset: usize) -> String {
        QueryError::Sql {
            message: "no such column: x".into(),
            sql: sql.into(),
            offset: Some(offset),
            hint: None,
        }
        .to_string()
    }

    #[test]
    fn a_caret_stands_under_the_place_in_its_own_line() {
        assert_eq!(
            error("select 1,\n  x from trial", 12),
            "no such column: x (line 2, column 3)\n    x from trial\n    ^"
        );
        assert_eq!(error("x", 0), "no such column: x (line 1, column 1)\n  x\n  ^");
    }

    #[test]
    fn an_offset_outside_the_text_points_nowhere() {
        assert_eq!(error("é", 1), "no such column: x");
        assert_eq!(error("x", 9), "no such column: x");
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let sql = format!("{}x{}", " ".repeat(500), " ".repeat(500));
        let lines: Vec<String> = error(&sql, 500).lines().map(str::to_owned).collect();
        assert_eq!(
            lines[1].chars().position(|c| c == 'x'),
            lines[2].chars().position(|c| c == '^')
        );
        assert!(lines[1].len() < 130);
    }
}
