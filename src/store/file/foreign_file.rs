//! SQLite files whose tables are another program's, which may have them open.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions, SqlitePool};

use crate::store::StoreError;

/// Longest wait for another process that writes to the file.
const BUSY: Duration = Duration::from_secs(5);

/// Opens the file, which is made where it is missing; its folder has to be there.
///
/// # Errors
/// Where it is no SQLite file, or cannot be written.
pub(in crate::store) async fn open_foreign(path: &Path) -> Result<SqlitePool, StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(BUSY)
        .disable_statement_logging();
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
    pool.map_err(|error| StoreError::from_sqlx(path, error))
}
