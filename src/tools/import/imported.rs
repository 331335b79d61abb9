//! [`read_recipe`]: the recipe that a settings file of any of the tools says.

use std::collections::BTreeSet;
use std::path::Path;

use super::settings_file::{parsed, text_of, tool_of, words_of};
use super::{Keys, Reader, StackFileError};
use crate::tools::Tool;
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::recipe::{DataFormat, LossOn, Recipe};
use peft_tune_core::study::Params;

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The tool that trains from it.
    pub tool: Tool,
    /// The file's settings, and the tool's own where the file is silent. The model is empty where the file names none, and so
    /// are the files to train on. No file that is held out is an empty list.
    pub recipe: Recipe,
    /// Names of the settings that the file says.
    pub said: BTreeSet<&'static str>,
    /// Keys that mean nothing here: of a newer version, or misspelt.
    pub unread: Vec<String>,
    /// What could not be taken over, or had to be assumed, with what to do.
    pub notes: Vec<String>,
    /// The same of the rows to train on.
    pub data_notes: Vec<String>,
}

impl Imported {
    /// The settings that the file says, by name.
    pub fn params(&self) -> Params {
        let said = settings().filter(|row| self.said.contains(row.name));
        said.filter_map(|row| Some((row.name.to_owned(), (row.get)(&self.recipe)?)))
            .collect()
    }

    /// Takes the format that the rows were recognised as, with the tokens that the tool then trains on.
    pub fn recognised(&mut self, format: DataFormat) {
        // Its own choice where the file says nothing of completions.
        if self.tool.import().learns_completions
            && self.recipe.data.format == DataFormat::Auto
            && format == DataFormat::PromptCompletion
        {
            self.recipe.data.loss_on = LossOn::Completions;
        }
        self.recipe.data.format = format;
    }
}

/// Reads the recipe of a file of `asked`, or of the tool that the file's keys tell.
///
/// # Errors
/// A file that cannot be read, whose tool is not clear, or with a value that the tool would not take.
pub fn read_recipe(path: &Path, asked: Option<Tool>) -> Result<Imported, StackFileError> {
    parse_recipe(path, &text_of(path)?, asked)
}

/// Reads a file's text; `path` says what kind of file it is and where its relative paths begin, and stands in messages.
///
/// # Errors
/// Errors of [`read_recipe`] that are about what the file says.
pub fn parse_recipe(path: &Path, text: &str, asked: Option<Tool>) -> Result<Imported, StackFileError> {
    let values = parsed(path, text)?;
    let keys = Keys::new(path, &values);
    let trains = tool_of(&keys, text, asked)?;
    let words = words_of(trains, &keys);
    let mut reader = Reader::new(&keys, text, [trains, words]);
    (words.import().read)(&mut reader)?;
    Ok(reader.finish())
}
