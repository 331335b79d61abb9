//! The results database: the option that says where it is, and how commands open it.

use std::path::PathBuf;

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::shell::command_line;
use crate::store::{Store, StoreError};

/// The database where none is named.
const USUAL: &str = "peft-tune.db";

/// The results database that a command works on.
#[derive(Clone, Debug, Default, clap::Args)]
pub(in crate::cli) struct DatabaseArgs {
    /// Results database [env: PEFT_TUNE_DB] [default: peft-tune.db]
    // Not clap's own `env`: a variable that is set to nothing counts as not set.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
}

impl DatabaseArgs {
    /// The database in this file, whatever the environment says.
    pub(in crate::cli) fn at(path: PathBuf) -> Self {
        Self { db: Some(path) }
    }

    /// The flag, else the environment's, else the default in the current folder.
    pub(in crate::cli) fn path(&self) -> PathBuf {
        let environment = || std::env::var_os("PEFT_TUNE_DB").filter(|path| !path.is_empty());
        let given = self.db.clone().or_else(|| environment().map(PathBuf::from));
        given.unwrap_or_else(|| PathBuf::from(USUAL))
    }

    /// The words that name the database, wherever that was said; none where it is the usual one.
    pub(in crate::cli) fn words(&self) -> Vec<String> {
        let path = self.path();
        match path.as_os_str() != USUAL {
            true => vec!["--db".to_owned(), path.to_string_lossy().into_owned()],
            false => Vec::new(),
        }
    }

    /// The words that name the database where the environment did; none where a flag did, or where it is the usual one.
    pub(in crate::cli) fn words_of_environment(&self) -> Vec<String> {
        if self.db.is_some() { Vec::new() } else { self.words() }
    }

    /// A command on this database as a shell takes it: `peft-tune`, these words, and the study's name.
    pub(in crate::cli) fn command(&self, words: &[&str], study: Option<&str>) -> String {
        let path = self.path().to_string_lossy().into_owned();
        let database = match path.as_str() {
            USUAL => Vec::new(),
            path => vec!["--db", path],
        };
        let mut command: Vec<&str> = ["peft-tune"].into_iter().chain(words.iter().copied()).collect();
        match study {
            // It would be taken for a flag.
            Some(study) if study.starts_with('-') => command.extend(database.into_iter().chain(["--", study])),
            study => command.extend(study.into_iter().chain(database)),
        }
        command_line(command)
    }

    /// Opens the database for reading, works with it and closes it. The file is left as it was.
    pub(in crate::cli) fn read<T>(
        &self,
        work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, CliError> {
        block_on(async {
            let store = Store::open_read_only(&self.path()).await?;
            let outcome = work(&store).await;
            let closed = store.close().await;
            let value = outcome?;
            closed?;
            Ok(value)
        })
    }

    /// Opens the database for what is measured of this machine, which it keeps; none where it cannot be written, which is told: what it
    /// would keep is measured each time then.
    pub(in crate::cli) async fn open_for_ceilings(&self) -> Result<Option<Store>, CliError> {
        match Store::open(&self.path()).await {
            Ok(store) => Ok(Some(store)),
            Err(error @ StoreError::NotWritable { .. }) => {
                tell(format_args!(
                    "warning: {error}; what is measured of this machine is not kept"
                ));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the database for writing, works with it and closes it. It has to be there.
    pub(in crate::cli) fn write<T>(
        &self,
        work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, CliError> {
        let path = self.path();
        if !path.exists() {
            return Err(StoreError::Missing { path }.into());
        }
        self.create_or_write(work)
    }

    /// Opens the database like [`DatabaseArgs::write`], or makes a new one where there is none.
    pub(in crate::cli) fn create_or_write<T>(
        &self,
        work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, CliError> {
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
pub(in crate::cli) fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::failed)?;
    runtime.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_names_the_database_and_keeps_names_whole() {
        let of = |db: Option<&str>| DatabaseArgs {
            db: db.map(PathBuf::from),
        };
        let other = of(Some("my results.db"));
        assert_eq!(
            other.command(&["pareto"], Some("`id`")),
            "peft-tune pareto '`id`' --db 'my results.db'"
        );
        assert_eq!(
            other.command(&["pareto"], Some("-x")),
            "peft-tune pareto --db 'my results.db' -- -x"
        );
        assert_eq!(of(Some(USUAL)).command(&["studies"], None), "peft-tune studies");
    }
}
