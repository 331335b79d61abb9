//! The command line: a file or a folder for each command, beside what only its kind needs. Results and messages are printed
//! by `terminal::output`; the rows of `query` and what child processes answer go to standard output as they come. A folder
//! uses only those below it here, and no two files use each other; `tests/it/floors.rs` checks both.
//!
//! | from the top | |
//! |---|---|
//! | `commands` | which file runs which command |
//! | `mcp`, `no_command`, `help` | tools for agents, the program alone, what it says of itself |
//! | `watch` | trainings of other tools, as they run |
//! | `check` | one recipe in two engines |
//! | `search`, `export`, `init` | searches that begin, run and end; files of other tools; study files |
//! | `plan` | what settings would cost |
//! | `study`, `database`, `model` | commands on what was found, on where it is kept, and on a model alone |
//! | `forecast`, `profile` | what a study is predicted from; one setting in depth |
//! | `train` | real fine-tunings |
//! | `data` | data made ready and looked at |
//! | `engines` | a few steps in one engine, for a comparison with another |
//! | `machine`, `processes` | this machine and its speed; commands that other commands start |
//! | `options`, `row_formats` | options of several commands; rows as a table, CSV, JSON, Parquet |
//! | `terminal`, `whole_output`, `page_output` | results and messages; files that appear whole; pages and pictures |
//! | `secrets` | what nothing that is shown has |
//! | `error`, `exit_codes` | how a command ends |

mod check;
mod commands;
mod data;
mod database;
mod engines;
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
mod page_output;
mod plan;
mod processes;
mod profile;
mod row_formats;
mod search;
mod secrets;
mod study;
mod terminal;
mod train;
mod watch;
mod whole_output;

pub use commands::{command_line_error, command_reference, main};
pub use error::CliError;
pub use exit_codes::{ExitRow, exit_codes};
