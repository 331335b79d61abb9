//! From the structure of a file to a sound study or recipe: every check that takes more than one value's type.

mod condition;
mod fidelity;
mod objective;
mod parameter;
mod paths;
mod plan;
mod recipe_file;
mod study_file;
mod values;

pub use recipe_file::{RecipeFile, RecipeFileError};

use super::yaml::Document;

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
