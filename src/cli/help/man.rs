//! `peft-tune man`: the program's manual pages.

use std::path::PathBuf;

use clap::Command;

use super::completions::shown;
use crate::cli::CliError;
use crate::cli::terminal::output::write_result;

/// Write the manual pages, one of the program and one of each command
///
/// For example: `peft-tune man ~/.local/share/man/man1`, then `man peft-tune-search`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Directory to write into; created if missing
    directory: PathBuf,
}

/// Writes the pages of `command`, which is the whole program.
pub(in crate::cli) fn run(args: &Args, command: &Command) -> Result<(), CliError> {
    let directory = args.directory.display();
    std::fs::create_dir_all(&args.directory)
        .and_then(|()| clap_mangen::generate_to(shown(command), &args.directory))
        .map_err(|error| {
            CliError::failed(anyhow::Error::new(error).context(format!("{directory} cannot be written")))
        })?;
    let pages = command.get_subcommands().filter(|one| !one.is_hide_set()).count() + 1;
    write_result(&format!("wrote {pages} pages to {directory}\n"))
}
