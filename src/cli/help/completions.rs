//! `peft-tune completions`: what a shell needs to complete the program's commands and options.

use clap::Command;
use clap_complete::Shell;

use crate::cli::CliError;
use crate::cli::terminal::output::write_exact;

/// Print the completion script of a shell
///
/// For example: `peft-tune completions bash > ~/.local/share/bash-completion/completions/peft-tune`, or for fish
/// `peft-tune completions fish > ~/.config/fish/completions/peft-tune.fish`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Shell to complete for.
    #[arg(value_enum)]
    shell: Shell,
}

/// What the script of bash is made for: it finds no command below a program with a hyphen in its name, so the line that says for
/// which program it is gets the right one afterwards.
const BASH_NAME: &str = "peft_tune";

/// Prints the script for `command`, which is the whole program.
pub(in crate::cli) fn run(args: Args, command: &Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    let name = if args.shell == Shell::Bash {
        BASH_NAME
    } else {
        "peft-tune"
    };
    clap_complete::generate(args.shell, &mut shown(command), name, &mut script);
    let script = String::from_utf8_lossy(&script);
    write_exact(&script.replace(&format!(" {BASH_NAME}\n"), " peft-tune\n"))
}

/// The program without its hidden commands, which the scripts would offer.
pub(super) fn shown(command: &Command) -> Command {
    let commands = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
    Command::new("peft-tune")
        .about(command.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(commands)
}
