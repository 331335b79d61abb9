//! The top-level arguments, and which file runs which subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::CliError;
use super::schema;

/// Finds the LoRA/QLoRA fine-tuning settings worth using for one model, one data set and one machine.
#[derive(Debug, Parser)]
#[command(name = "peft-tune", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the JSON Schema of a study or recipe file, for editors that complete YAML.
    Schema(schema::Args),
}

/// Runs the program and returns its exit code: 0 done, 1 failed while running, 2 bad input or usage.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Schema(args) => schema::run(args),
    }
}
