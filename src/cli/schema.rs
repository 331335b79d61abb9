//! `peft-tune schema`: the JSON Schema of the YAML files.

use clap::ValueEnum;

use super::CliError;
use crate::space::{recipe_schema, study_schema};

/// Prints the JSON Schema of a study or recipe file, for editors that complete YAML
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which file's schema to print.
    #[arg(value_enum, default_value_t = File::Space)]
    file: File,
}

/// A kind of YAML file.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum File {
    /// A study file, as `search` reads it.
    Space,
    /// A recipe file, as `train`, `profile` and `export --format recipe` know it.
    Recipe,
}

/// Prints the schema.
pub fn run(args: Args) -> Result<(), CliError> {
    let schema = match args.file {
        File::Space => study_schema(),
        File::Recipe => recipe_schema(),
    };
    println!("{}", serde_json::to_string_pretty(&schema).map_err(CliError::failed)?);
    Ok(())
}
