//! Where the results database is, and how commands open it.

use std::path::PathBuf;

use super::CliError;
use crate::store::{Store, StoreError};

/// The results database that a command works on.
#[derive(Clone, Debug, clap::Args)]
pub struct DatabaseArgs {
    /// Results database [env: PEFT_TUNE_DB] [default: peft-tune.db]
    // Not clap's own `env`: a variable that is set to nothing counts as not set.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
}

impl DatabaseArgs {
    /// The flag, else the environment's, else the default in the current folder.
    pub fn path(&self) -> PathBuf {
        let environment = || std::env::var_os("PEFT_TUNE_DB").filter(|path| !path.is_empty());
        let given = self.db.clone().or_else(|| environment().map(PathBuf::from));
        given.unwrap_or_else(|| PathBuf::from("peft-tune.db"))
    }

    /// Opens the database for reading, works with it and closes it. The file is left as it was.
    pub fn read<T>(&self, work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>) -> Result<T, CliError> {
        block_on(async {
            let store = Store::open_read_only(&self.path()).await?;
            let outcome = work(&store).await;
            let closed = store.close().await;
            let value = outcome?;
            closed?;
            Ok(value)
        })
    }

    /// Opens the database for writing, works with it and closes it. It has to be there.
    pub fn write<T>(&self, work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>) -> Result<T, CliError> {
        let path = self.path();
        if !path.exists() {
            return Err(StoreError::Missing { path }.into());
        }
        self.create_or_write(work)
    }

    /// As [`DatabaseArgs::write`], with a new database where there is none.
    pub fn create_or_write<T>(&self, work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>) -> Result<T, CliError> {
        block_on(async {
            let store = Store::open(&self.path()).await?;
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
