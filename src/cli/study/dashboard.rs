//! `peft-tune dashboard`: a study as a live page on this machine.

use crate::cli::CliError;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::output::tell;
use crate::dashboard::{ConnectionLimits, Dashboard, DashboardError, DashboardSettings};
use crate::store::{Store, StoreError};

/// Show a study as a live page on this machine, with controls for its search
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study; the latest where absent
    study: Option<String>,
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 7788)]
    port: u16,
    /// Read-only: no pausing, stopping or enqueueing
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    block_on(async {
        let (store, writable) = open(&args.database).await?;
        if let Some(name) = &args.study {
            store.studies().find(Some(name)).await?;
        }
        let settings = DashboardSettings {
            port: args.port,
            study: args.study.clone(),
            control: writable && !args.read_only,
            limits: ConnectionLimits::default(),
        };
        let dashboard = Dashboard::bind(store, settings).await?;
        tell(format_args!("to watch:             {}", dashboard.url()));
        if let Some(url) = dashboard.control_url() {
            tell(format_args!("to watch and control: {url}"));
        }
        tell(format_args!("Ctrl-C ends the dashboard; a search continues without it"));
        let end = async {
            // Without signals the process is ended some other way.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        Ok(dashboard.serve(end).await?)
    })
}

/// Opens an existing database, for writing where that is possible: only then does SQLite show what a search that begins
/// later writes.
async fn open(database: &DatabaseArgs) -> Result<(Store, bool), StoreError> {
    let path = database.path();
    match Store::open_read_only(&path).await {
        // An empty one may be filled while the page is open.
        Ok(_) | Err(StoreError::Empty { .. }) => {}
        Err(error) => return Err(error),
    }
    match Store::open(&path).await {
        Ok(store) => Ok((store, true)),
        Err(StoreError::NotWritable { .. }) => {
            tell(format_args!(
                "warning: {} cannot be written: the page only shows",
                path.display()
            ));
            Ok((Store::open_read_only(&path).await?, false))
        }
        Err(error) => Err(error),
    }
}

impl From<DashboardError> for CliError {
    fn from(error: DashboardError) -> Self {
        match error {
            DashboardError::Store(error) => error.into(),
            DashboardError::Port { .. } => Self::bad_input(error),
            other => Self::failed(other),
        }
    }
}
