//! [`import`]: the recipe that a settings file of any of the tools says.

use std::collections::BTreeSet;
use std::path::Path;

use super::reader::Reader;
use super::{axolotl, llamafactory, peft, torchtune, trl, unsloth};
use crate::stacks::StackFileError;
use crate::stacks::config::{parsed, stack_of, text_of};
use crate::stacks::keys::Keys;
use crate::tools::Tool;
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::recipe::{DataFormat, LossOn, Recipe};
use peft_tune_core::study::Params;

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub stack: Tool,
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
        let is_of_trl = matches!(self.stack, Tool::Trl | Tool::Unsloth);
        // TRL's own choice where the file says nothing of completions.
        if is_of_trl && self.recipe.data.format == DataFormat::Auto && format == DataFormat::PromptCompletion {
            self.recipe.data.loss_on = LossOn::Completions;
        }
        self.recipe.data.format = format;
    }
}

/// Reads a tool's file into the recipe.
type Read = fn(&mut Reader<'_>) -> Result<(), StackFileError>;

/// Reads the recipe of a file of `stack`, or of the tool that the file's keys tell.
///
/// # Errors
/// A file that cannot be read, whose tool is not clear, or with a value that the tool would not take.
pub fn import(path: &Path, stack: Option<Tool>) -> Result<Imported, StackFileError> {
    parse(path, &text_of(path)?, stack)
}

/// Reads a file's text; `path` says what kind of file it is and where its relative paths begin, and stands in messages.
///
/// # Errors
/// Those of [`import`] that are about what the file says.
pub fn parse(path: &Path, text: &str, stack: Option<Tool>) -> Result<Imported, StackFileError> {
    let values = parsed(path, text)?;
    let keys = Keys::new(path, &values);
    let stack = stack_of(&keys, text, stack)?;
    let is_adapter = keys.has("peft_type");
    let (tool, read): (Tool, Read) = match stack {
        _ if is_adapter => (Tool::Peft, peft::read),
        Tool::Peft => (Tool::Peft, peft::read),
        Tool::Trl => (Tool::Trl, trl::read),
        Tool::Unsloth => (Tool::Unsloth, unsloth::read),
        Tool::Axolotl => (Tool::Axolotl, axolotl::read),
        Tool::LlamaFactory => (Tool::LlamaFactory, llamafactory::read),
        Tool::Torchtune => (Tool::Torchtune, torchtune::read),
    };
    let mut reader = Reader::new(&keys, text, stack, tool);
    read(&mut reader)?;
    Ok(reader.finish())
}
