//! Where the results database is, and how commands open it.

use std::path::PathBuf;

use super::CliError;
use crate::store::{Store, StoreError};

/// The results database that a command works on.
#[derive(Clone, Debug, clap::Args)]
pub struct DatabaseArgs {
    /// Results database
    #[arg(long, value_name = "PATH", env = "PEFT_TUNE_DB", default_value = "peft-tune.db")]
    pub db: PathBuf,
}

impl DatabaseArgs {
    /// Opens the database for reading, works with it and closes it. The file is left as it was.
    pub fn read<T>(&self, work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>) -> Result<T, CliError> {
        block_on(async {
            let store = Store::open_read_only(&self.db).await?;
            let outcome = work(&store).await;
            let closed = store.close().await;
            let value = outcome?;
            closed?;
            Ok(value)
        })
    }
}

/// Runs a future on a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::failed)?;
    runtime.block_on(future)
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        if error.is_bad_input() {
            Self::bad_input(error)
        } else {
            Self::failed(error)
        }
    }
}
