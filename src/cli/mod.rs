//! The command line: one file per subcommand. Only this folder prints.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the command line is what prints"
)]

mod args;
mod database;
mod error;
mod output;
mod pareto;
mod query;
mod show;
mod studies;
mod trial_text;

pub use args::main;
pub use error::CliError;
