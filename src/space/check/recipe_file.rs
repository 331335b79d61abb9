//! Reads and writes recipe files.

use std::path::Path;

use super::{Context, ReadOptions};
use crate::space::SpaceError;
use crate::space::yaml::Document;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::recipe::settings::settings;

/// A `recipe.yaml`: one complete [`Recipe`].
pub struct RecipeFile;

impl RecipeFile {
    /// Reads a recipe file, checks it, and makes its paths absolute (they are relative to the file's folder).
    ///
    /// # Errors
    /// At the first mistake; the error names file, line, column and key, and what to do.
    pub fn read(path: &Path) -> Result<Recipe, SpaceError> {
        Self::read_with(path, ReadOptions::default())
    }

    /// Reads a recipe like [`RecipeFile::read`], as strictly as `options` say.
    pub fn read_with(path: &Path, options: ReadOptions) -> Result<Recipe, SpaceError> {
        recipe_of(&Document::read(path)?, options)
    }

    /// Checks text as if it stood in the file `path`.
    pub fn parse(path: &Path, text: &str, options: ReadOptions) -> Result<Recipe, SpaceError> {
        recipe_of(&Document::parse(path, text)?, options)
    }

    /// The recipe as YAML that [`RecipeFile::read`] reads back unchanged.
    ///
    /// # Errors
    /// Where a path is not valid Unicode, which YAML cannot hold.
    pub fn to_yaml(recipe: &Recipe) -> Result<String, RecipeFileError> {
        serde_saphyr::to_string(recipe).map_err(|error| RecipeFileError(error.to_string()))
    }
}

/// A recipe that cannot be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the recipe as YAML: {0}; rename paths that are not Unicode")]
pub struct RecipeFileError(String);

fn recipe_of(document: &Document, options: ReadOptions) -> Result<Recipe, SpaceError> {
    let context = Context { document, options };
    context.check_recipe_length()?;
    let mut recipe: Recipe = document.decode()?;
    recipe.model = context.resolve_model(&recipe.model)?;
    context.resolve_data(&mut recipe.data)?;
    if let Some(adapter) = &mut recipe.adapter
        && let Some(folder) = &adapter.adapter_init
    {
        adapter.adapter_init = Some(context.folder(&["adapter", "adapter_init"], folder)?);
    }
    context.check_training(&recipe.training)?;
    // A derived parameter (alpha_ratio, global_batch) is checked through the fields it is computed from.
    for row in settings().filter(|row| row.derived_from.is_none()) {
        let keys: Vec<&str> = row.field.split('.').collect();
        context.check_row(row, &recipe, &keys)?;
    }
    context.settle_rows(&mut recipe)?;
    context.check_schedule(&recipe)?;
    context.check_shared_out(&recipe)?;
    context.check_offload(&recipe)?;
    Ok(recipe)
}
