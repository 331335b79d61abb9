//! `peft-tune completions`: what a shell needs to complete the program's commands and options.

use clap::Command;
use clap_complete::Shell;

use super::CliError;
use super::output::write_result;

/// Print the completion script of a shell
///
/// For example: `peft-tune completions bash > ~/.local/share/bash-completion/completions/peft-tune`, or for fish
/// `peft-tune completions fish > ~/.config/fish/completions/peft-tune.fish`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Shell to complete for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for `command`, which is the whole program.
pub(super) fn run(args: Args, mut command: Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "peft-tune", &mut script);
    write_result(&String::from_utf8_lossy(&script))
}
