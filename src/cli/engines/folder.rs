//! Folders that a comparison leaves nothing of.

use tempfile::TempDir;

use crate::cli::CliError;

/// A folder that goes with what holds it. `what` is to be done in it, for people.
///
/// # Errors
/// Bad input: there is no room for one.
pub(in crate::cli) fn temporary(what: &str) -> Result<TempDir, CliError> {
    tempfile::tempdir().map_err(|error| {
        let folder = std::env::temp_dir();
        let folder = folder.display();
        CliError::bad(format!(
            "cannot {what} in {folder}: {error}; make room there, or name another folder in TMPDIR"
        ))
    })
}
