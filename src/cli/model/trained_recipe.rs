//! What a training has left beside its adapter: its recipe, and the chat template that this names.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::space::{ReadOptions, RecipeFile, SpaceError};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::hub::ModelFiles;

/// The recipe that a training has left beside its adapter; none beside one of elsewhere. Its data may be gone: they are
/// not read.
///
/// # Errors
/// A recipe that cannot be read.
pub(super) fn recipe_beside(adapter: &Path) -> Result<Option<Recipe>, CliError> {
    let path = adapter.join("recipe.yaml");
    match RecipeFile::read_with(&path, ReadOptions { check_files: false }) {
        Ok(recipe) => Ok(Some(recipe)),
        Err(SpaceError::Unreadable {
            reason: ErrorKind::NotFound,
            ..
        }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Puts the chat template that a recipe trained with in the place of the model's own, and returns its file. `None`
/// where the recipe trained with the model's, or where the file is gone, which is told.
pub(super) fn take_template(recipe: Option<&Recipe>, files: &mut ModelFiles) -> Option<PathBuf> {
    let template = recipe?.data.chat_template.as_deref()?;
    let shown = template.display();
    if !template.is_file() {
        tell(format_args!(
            "warning: the adapter was trained with the chat template {shown} (`data.chat_template`), which is not there: \
             the model's own is taken; put the file back to have the one of the training"
        ));
        return None;
    }
    tell(format_args!(
        "the chat template is {shown}, with which the adapter was trained (`data.chat_template`)"
    ));
    files.tokenizer.chat_template = Some(template.to_owned());
    Some(template.to_owned())
}

/// Writes a chat template into a model directory, under the name that goes before all other places of one.
///
/// # Errors
/// Bad input: a template that cannot be read, or a directory that cannot be written to.
pub(super) fn write_template(template: &Path, output: &Path) -> Result<(), CliError> {
    let text = std::fs::read(template).map_err(|error| {
        let message = format!("cannot read the chat template {}", template.display());
        CliError::bad_input(anyhow::Error::new(error).context(message))
    })?;
    let path = output.join("chat_template.jinja");
    write_whole(&path, &text, true).map_err(|error| CliError::cannot_write(&path, &error, "--output"))
}
