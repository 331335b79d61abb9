//! Checks from the structure of a file to a sound study or recipe: all that take more than one value's type.

mod backend;
mod condition;
mod fidelity;
mod objective;
mod optimizer_offload;
mod parameter;
mod paths;
mod plan;
mod precision_schedule;
mod recipe_file;
mod score;
mod serve;
mod sharding;
mod study_file;
mod target;
mod track;
mod trainer;
mod values;

pub use recipe_file::{RecipeFile, RecipeFileError};

use super::SpaceError;
use super::yaml::Document;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::recipe::settings::SettingRow;

/// How strictly a file is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether model directories and data files must be there. Without it paths are still made absolute, and what
    /// looks like a hub id stays one.
    pub check_files: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { check_files: true }
    }
}

/// A document under examination.
#[derive(Clone, Copy)]
struct Context<'a> {
    document: &'a Document,
    options: ReadOptions,
}

impl Context<'_> {
    /// Refuses a recipe's value that the table of settings does not allow, where it stands in the file.
    fn check_row(&self, row: &SettingRow, recipe: &Recipe, keys: &[&str]) -> Result<(), SpaceError> {
        match (row.get)(recipe) {
            Some(value) if !row.legal.allows(&value) => Err(SpaceError::IllegalValue {
                at: self.document.value(keys),
                parameter: row.name.to_owned(),
                value: format!("`{value}`"),
                legal: row.legal.to_string(),
            }),
            _ => Ok(()),
        }
    }
}
