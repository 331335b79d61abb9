//! `peft-tune import`: takes studies over from another results database.

use std::path::PathBuf;

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::write_result;
use crate::report::printable;
use crate::store::{ImportOutcome, ImportWish, import_studies};

/// Copy the studies of another results database into this one, without changing those already there
///
/// A study whose name is taken gets a number after it, and one that already exists is left out. The other file is
/// only read.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The other database
    file: PathBuf,
    /// Copy only this study
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// Name to give it here
    #[arg(long = "as", value_name = "NAME", requires = "study")]
    rename: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let preference = ImportWish {
        study: args.study.clone(),
        rename: args.rename.clone(),
    };
    if !args.file.is_file() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "no results database at {}: name the file to import",
            args.file.display()
        )));
    }
    let imported = args
        .database
        .create_or_write(async |store| import_studies(store, &args.file, &preference).await)?;
    let mut text = String::new();
    for study in &imported {
        let name = printable(&study.study);
        text.push_str(&match &study.outcome {
            ImportOutcome::AlreadyThere => format!("study {name} already exists: left out\n"),
            ImportOutcome::Copied { name: new, trials } if *new == study.study => {
                format!("study {name}: {trials} trials\n")
            }
            ImportOutcome::Copied { name: new, trials } => {
                format!("study {name}: {trials} trials, as {}\n", printable(new))
            }
        });
    }
    if imported.is_empty() {
        text.push_str("the other database has no study\n");
    }
    write_result(&text)
}
