//! A study file for commands that need neither its data nor its trials: `plan`, `rows`.

use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::options::backend::BackendName;
use crate::cli::terminal::output::tell;
use crate::space::{ReadOptions, RecipeFile, SpaceError, Study, StudyFile};
use peft_tune_core::recipe::{DataSettings, HubDataSet, Recipe};

/// Reads a study file whose data need not be on this machine: `false` where they are not.
///
/// # Errors
/// Errors of [`StudyFile::read`], but for data that are missing.
pub(in crate::cli) fn study_of(file: &Path) -> Result<(Study, bool), CliError> {
    study_for(file, None)
}

/// Reads a study file like [`study_of`]; its trials are run by what is `asked` for, where something is.
///
/// # Errors
/// Errors of [`StudyFile::read_for`], but for data that are missing.
pub(in crate::cli) fn study_for(file: &Path, asked: Option<BackendName>) -> Result<(Study, bool), CliError> {
    let asked = asked.map(BackendName::backend);
    let error = match StudyFile::read_for(file, asked.clone()) {
        Ok(study) => return Ok((study, true)),
        Err(error) => error,
    };
    if !matches!(error, SpaceError::MissingPath { .. }) {
        return Err(error.into());
    }
    let study = StudyFile::read_for_with(file, asked, ReadOptions { check_files: false })?;
    let Some(data) = study.base.as_ref().map(|base| &base.data) else {
        return Err(error.into());
    };
    match missing(data) {
        Some(missing) => {
            tell_missing(&missing);
            Ok((study, false))
        }
        // It is the model.
        None => Err(error.into()),
    }
}

/// Reads a recipe file, or the recipe that the trials of a study complete; its data need not be on this machine: `false` where they are
/// not.
///
/// # Errors
/// Errors of [`StudyFile::read`] and [`RecipeFile::read`], but for data that are missing.
pub(in crate::cli) fn recipe_of(file: &Path) -> Result<(Recipe, bool), CliError> {
    if is_study(file) {
        let (study, has_data) = study_of(file)?;
        return Ok((base_of(&study)?.clone(), has_data));
    }
    let error = match RecipeFile::read(file) {
        Ok(recipe) => return Ok((recipe, true)),
        Err(error) => error,
    };
    if !matches!(error, SpaceError::MissingPath { .. }) {
        return Err(error.into());
    }
    let recipe = RecipeFile::read_with(file, ReadOptions { check_files: false })?;
    match missing(&recipe.data) {
        Some(missing) => {
            tell_missing(&missing);
            Ok((recipe, false))
        }
        None => Err(error.into()),
    }
}

/// Reads a recipe file, or the recipe that the trials of a study complete; its data have to be on this machine.
///
/// # Errors
/// Errors of [`StudyFile::read`] and [`RecipeFile::read`]; a study without a recipe.
pub(in crate::cli) fn recipe_with_data_of(file: &Path) -> Result<Recipe, CliError> {
    match is_study(file) {
        true => Ok(base_of(&StudyFile::read(file)?)?.clone()),
        false => Ok(RecipeFile::read(file)?),
    }
}

/// Whether a file is a study's, and no recipe.
pub(in crate::cli) fn is_study(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| line.starts_with("space:")))
}

/// The first file of the data that is not on this machine.
fn missing(data: &DataSettings) -> Option<PathBuf> {
    let is_here = |path: &PathBuf| path.is_file() || HubDataSet::is_written(path);
    let files = data.train.files().chain(data.held_out.files());
    let mut files = files.chain(&data.chat_template);
    files.find(|path| !is_here(path)).cloned()
}

fn tell_missing(path: &Path) {
    tell(format_args!(
        "warning: no data at {}: every row is assumed to be full, and no lengths are shown",
        path.display()
    ));
}

/// The recipe that trials complete.
pub(in crate::cli) fn base_of(study: &Study) -> Result<&Recipe, CliError> {
    study.base.as_ref().ok_or_else(|| {
        let message = "a study with a command backend cannot be planned, and no rows can be shown: only the program knows what a \
                       trial costs and reads";
        CliError::bad_input(anyhow::anyhow!(message))
    })
}
