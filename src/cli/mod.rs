//! The command line: one file per subcommand. Only this folder prints.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the command line is what prints"
)]

mod args;
mod error;

pub use args::main;
pub use error::CliError;
