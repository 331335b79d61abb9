//! `peft-tune schema`: the JSON Schema of the YAML files and of the worker's protocol.

use clap::ValueEnum;

use super::CliError;
use crate::space::{recipe_schema, study_schema};
use crate::worker::protocol_schema;

/// Prints the JSON Schema of a study or recipe file, for editors that complete YAML, or of the worker's protocol
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which schema to print.
    #[arg(value_enum, default_value_t = File::Space)]
    file: File,
}

/// What has a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum File {
    /// A study file, as `search` reads it.
    Space,
    /// A recipe file, as `train`, `profile` and `export --format recipe` know it.
    Recipe,
    /// What a search and its worker processes say to each other, a JSON object a line.
    Protocol,
}

/// Prints the schema.
pub fn run(args: Args) -> Result<(), CliError> {
    let schema = match args.file {
        File::Space => study_schema(),
        File::Recipe => recipe_schema(),
        File::Protocol => protocol_schema().to_value(),
    };
    println!("{}", serde_json::to_string_pretty(&schema).map_err(CliError::failed)?);
    Ok(())
}
