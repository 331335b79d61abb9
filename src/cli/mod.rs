//! The command line: one file per subcommand. Only this folder prints, and only through `output`.

mod commands;
mod data;
mod database;
mod error;
mod exit_codes;
mod export;
mod forecast;
mod help;
mod init;
mod machine;
mod mcp;
mod model;
mod no_command;
mod options;
mod plan;
mod processes;
mod profile;
mod row_formats;
mod search;
mod study;
mod terminal;
mod train;
mod whole_output;

pub use commands::{command_line_error, command_reference, main};
pub use error::CliError;
pub use exit_codes::{ExitRow, exit_codes};
