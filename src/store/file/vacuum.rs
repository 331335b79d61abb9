//! Making a database's file as small as its content.

use crate::store::{Store, StoreError};

/// Size of a database's file before and after it was made smaller, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacuumed {
    pub before_bytes: u64,
    pub after_bytes: u64,
}

/// Checks the whole file, rewrites it without gaps and renews the statistics that queries are planned by.
///
/// # Errors
/// [`StoreError::Corrupt`] where the check fails; the file is then as it was. [`StoreError::Locked`] while another
/// process has it open.
pub async fn vacuum(store: &Store) -> Result<Vacuumed, StoreError> {
    let before_bytes = file_bytes(store);
    let verdict: String = sqlx::query_scalar("pragma integrity_check(1)")
        .fetch_one(&store.pool)
        .await
        .map_err(|error| store.error(error))?;
    if verdict != "ok" {
        return Err(StoreError::Corrupt {
            path: store.path.clone(),
            detail: verdict,
        });
    }
    for statement in ["vacuum", "analyze", "pragma wal_checkpoint(truncate)"] {
        sqlx::query(statement)
            .execute(&store.pool)
            .await
            .map_err(|error| store.error(error))?;
    }
    Ok(Vacuumed {
        before_bytes,
        after_bytes: file_bytes(store),
    })
}

fn file_bytes(store: &Store) -> u64 {
    std::fs::metadata(&store.path).map_or(0, |metadata| metadata.len())
}
