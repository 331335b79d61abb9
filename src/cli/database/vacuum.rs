//! `peft-tune vacuum`: checks the results database and makes it as small as it can be.

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::write_result;
use crate::report::bytes;
use crate::store::vacuum;

/// Check the results database, free the space of deleted studies, and renew its statistics
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let vacuumed = args.database.write(async |store| vacuum(store).await)?;
    write_result(&format!(
        "{}: sound, {} before, {} now\n",
        args.database.path().display(),
        bytes(vacuumed.before_bytes as f64),
        bytes(vacuumed.after_bytes as f64)
    ))
}
