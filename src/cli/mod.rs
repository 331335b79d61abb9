//! The command line: one file per subcommand. Only this folder prints.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the command line is what prints"
)]

mod args;
mod choose;
mod dashboard;
mod database;
mod download;
mod error;
mod export;
mod generate;
mod interrupt;
mod merge;
mod model;
mod output;
mod pareto;
mod preflight;
mod progress;
mod query;
mod report;
mod schema;
mod search;
mod show;
mod studies;
mod train;
mod train_watch;
mod trial_text;
mod worker;

pub use args::main;
pub use error::CliError;
