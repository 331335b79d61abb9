//! Rows of preferences as files of JSON lines, which TRL's trainers read and tokenise themselves.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value};

use super::row_files::RowFiles;
use crate::cli::CliError;
use peft_tune_core::recipe::{DataSettings, HeldOut, Recipe};
use peft_tune_core::whole_file::WholeFile;
use peft_tune_engine::data::{PreferenceSet, each_preference};
use peft_tune_engine::hub::ModelFiles;

/// Writes the rows that trials of `recipe` train on and are evaluated on into `rows`, in the order of its files. `refuse` makes an
/// error of a file that cannot be written.
///
/// # Errors
/// Bad input: rows that cannot be read, and what `refuse` makes.
pub(super) fn write(
    rows: &RowFiles,
    recipe: &Recipe,
    files: &ModelFiles,
    force: bool,
    refuse: &dyn Fn(&Path, &io::Error) -> CliError,
) -> Result<(), CliError> {
    let create = |path: &Path| WholeFile::create(path, force).map_err(|error| refuse(path, &error));
    let (mut train, mut held_out) = (create(&rows.train)?, create(&rows.held_out)?);
    let mut unwritten = None;
    let mut take = |set: PreferenceSet, row: &Map<String, Value>| {
        let (path, file) = match set {
            PreferenceSet::Train => (&rows.train, &mut train),
            PreferenceSet::HeldOut => (&rows.held_out, &mut held_out),
        };
        match write_row(file, row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                unwritten = Some(refuse(path, &error));
                ControlFlow::Break(())
            }
        }
    };
    each_preference(recipe, files, &mut take).map_err(CliError::bad_input)?;
    if let Some(error) = unwritten {
        return Err(error);
    }
    for (path, file) in [(&rows.train, train), (&rows.held_out, held_out)] {
        file.finish().map_err(|error| refuse(path, &error))?;
    }
    Ok(())
}

/// The data of a recipe as these files hold them.
pub(super) fn settings(data: &DataSettings, rows: &RowFiles) -> DataSettings {
    DataSettings {
        train: vec![rows.train.clone()].into(),
        held_out: HeldOut::File(rows.held_out.clone()),
        held_out_length: data.held_out_length,
        format: data.format,
        tokenizing_workers: data.tokenizing_workers,
        chat_template: data.chat_template.clone(),
        ..DataSettings::default()
    }
}

fn write_row(file: &mut WholeFile, row: &Map<String, Value>) -> io::Result<()> {
    serde_json::to_writer(&mut *file, row)?;
    file.write_all(b"\n")
}
