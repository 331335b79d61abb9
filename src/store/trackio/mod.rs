//! A project of trackio that is kept up to date.
//!
//! A row has an id of ours in `log_id`, which trackio keeps unique: what is there is not written twice.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sqlx::{SqliteConnection, SqlitePool};

use super::StoreError;
use super::file::foreign_file::open_foreign;
use super::row::to_i64;

const SCHEMA: &str = include_str!("schema.sql");

/// File of a trackio project.
#[derive(Debug)]
pub struct TrackioFile {
    path: PathBuf,
    pool: SqlitePool,
}

/// A run of a trackio project.
#[derive(Clone, Debug)]
pub struct TrackioRun {
    /// Id that no other run has.
    pub id: String,
    pub name: String,
    /// Start in UTC, ISO 8601; another start is another attempt, and the rows of the one before go.
    pub started_at: String,
    pub config: Value,
    /// Rows in order, which only grow.
    pub rows: Vec<TrackioRow>,
    /// Metrics of the whole run, once it is over.
    pub end: Option<TrackioRow>,
}

/// Values of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackioRow {
    pub step: u64,
    /// Seconds since 1970.
    pub at_s: f64,
    /// Metrics by name.
    pub metrics: Value,
}

impl TrackioFile {
    /// Opens the file, which is made where it is missing; its folder has to be there.
    ///
    /// # Errors
    /// Where it is no SQLite file, or cannot be written.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            pool: open_foreign(path).await?,
            path: path.to_owned(),
        })
    }

    /// Writes what the file lacks of some runs, in one transaction.
    ///
    /// # Errors
    /// Where writing fails; nothing of them is written then.
    pub async fn put(&self, runs: &[TrackioRun]) -> Result<(), StoreError> {
        let written = async {
            let mut transaction = self.pool.begin_with("begin immediate").await?;
            sqlx::raw_sql(SCHEMA).execute(&mut *transaction).await?;
            for run in runs {
                put_run(&mut transaction, run).await?;
            }
            transaction.commit().await
        };
        written.await.map_err(|error| StoreError::from_sqlx(&self.path, error))
    }
}

async fn put_run(connection: &mut SqliteConnection, run: &TrackioRun) -> Result<(), sqlx::Error> {
    put_config(connection, run).await?;
    let there: i64 =
        sqlx::query_scalar("select count(*) from metrics where run_id = ? and log_id <> ? and log_id is not null")
            .bind(&run.id)
            .bind(end_of(run))
            .fetch_one(&mut *connection)
            .await?;
    let there = usize::try_from(there).unwrap_or(0);
    for (place, row) in run.rows.iter().enumerate().skip(there) {
        insert(connection, run, &format!("{}-{place}", run.id), row).await?;
    }
    let Some(end) = &run.end else {
        return Ok(());
    };
    let log_id = end_of(run);
    let known: Option<String> = sqlx::query_scalar("select metrics from metrics where log_id = ?")
        .bind(&log_id)
        .fetch_optional(&mut *connection)
        .await?;
    if known.as_deref() == Some(end.metrics.to_string().as_str()) {
        return Ok(());
    }
    sqlx::query("delete from metrics where log_id = ?")
        .bind(&log_id)
        .execute(&mut *connection)
        .await?;
    insert(connection, run, &log_id, end).await
}

fn end_of(run: &TrackioRun) -> String {
    format!("{}-end", run.id)
}

/// Writes the config of a run that is new, that another attempt began anew, or whose config changed.
async fn put_config(connection: &mut SqliteConnection, run: &TrackioRun) -> Result<(), sqlx::Error> {
    let known: Option<(String, String)> = sqlx::query_as("select created_at, config from configs where run_id = ?")
        .bind(&run.id)
        .fetch_optional(&mut *connection)
        .await?;
    let config = run.config.to_string();
    let is_begun = known.as_ref().is_some_and(|(began, _)| *began == run.started_at);
    if is_begun && known.is_some_and(|(_, there)| there == config) {
        return Ok(());
    }
    if !is_begun {
        sqlx::query("delete from metrics where run_id = ?")
            .bind(&run.id)
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query("insert or replace into configs (run_id, run_name, config, created_at) values (?, ?, ?, ?)")
        .bind(&run.id)
        .bind(&run.name)
        .bind(config)
        .bind(&run.started_at)
        .execute(connection)
        .await
        .map(drop)
}

async fn insert(
    connection: &mut SqliteConnection,
    run: &TrackioRun,
    log_id: &str,
    row: &TrackioRow,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into metrics (timestamp, run_id, run_name, step, metrics, log_id)
         values (strftime('%Y-%m-%dT%H:%M:%f', ?, 'unixepoch') || '+00:00', ?, ?, ?, ?, ?)",
    )
    .bind(row.at_s)
    .bind(&run.id)
    .bind(&run.name)
    .bind(to_i64(row.step).unwrap_or(i64::MAX))
    .bind(row.metrics.to_string())
    .bind(log_id)
    .execute(connection)
    .await
    .map(drop)
}
