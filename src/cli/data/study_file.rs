//! A study file for commands that need neither its data nor its trials: `plan`, `rows`.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::space::{ReadOptions, SpaceError, Study, StudyFile};
use peft_tune_core::recipe::{HubDataSet, Recipe};

/// Reads a study file whose data need not be on this machine: `false` where they are not.
///
/// # Errors
/// As for any study file.
pub(in crate::cli) fn study_of(file: &Path) -> Result<(Study, bool), CliError> {
    let error = match StudyFile::read(file) {
        Ok(study) => return Ok((study, true)),
        Err(error) => error,
    };
    if !matches!(error, SpaceError::MissingPath { .. }) {
        return Err(error.into());
    }
    let study = StudyFile::read_with(file, ReadOptions { check_files: false })?;
    let is_here = |path: &std::path::PathBuf| path.is_file() || HubDataSet::is_written(path);
    let Some(data) = study.base.as_ref().map(|base| &base.data) else {
        return Err(error.into());
    };
    let mut files = data
        .train
        .files()
        .chain(data.held_out.files())
        .chain(&data.chat_template);
    let missing = files.find(|path| !is_here(path)).cloned();
    drop(files);
    match missing {
        Some(missing) => {
            tell(format_args!(
                "warning: no data at {}: every row is assumed to be full, and no lengths are shown",
                missing.display()
            ));
            Ok((study, false))
        }
        // It is the model.
        None => Err(error.into()),
    }
}

/// The recipe that trials complete.
pub(in crate::cli) fn base_of(study: &Study) -> Result<&Recipe, CliError> {
    study.base.as_ref().ok_or_else(|| {
        let message = "a study with a command backend cannot be planned: only the program knows what a trial costs";
        CliError::bad_input(anyhow::anyhow!(message))
    })
}
