//! `peft-tune delete`: removes a study from the results database.

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::confirm::confirm;
use crate::cli::terminal::output::write_result;
use crate::report::printable;

/// Delete a study with all its trials from the results database
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study
    study: String,
    /// Delete without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let study = args
        .database
        .read(async |store| store.studies().find(Some(&args.study)).await)?;
    let (name, trials) = (printable(&study.name), study.trials());
    if !confirm(&format!("Delete study {name} with {trials} trials?"), args.yes)? {
        return write_result("nothing was deleted\n");
    }
    args.database
        .write(async |store| store.studies().delete(study.id, &study.name).await)?;
    write_result(&format!(
        "deleted study {name} with {trials} trials; `{}` frees its space in the file\n",
        args.database.command(&["vacuum"], None)
    ))
}
