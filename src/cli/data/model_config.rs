//! The `config.json` of a model of any family, and the dimensions in it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::CliError;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::{ModelShape, StackError};
use peft_tune_core::python_json;
use peft_tune_engine::hub::ModelFiles;

/// The contents of a `config.json`.
#[derive(Debug)]
pub(in crate::cli) struct ModelConfig {
    path: PathBuf,
    /// Whatever the file holds.
    pub value: Value,
}

impl ModelConfig {
    /// Finds the file of a model, and reads it.
    ///
    /// # Errors
    /// Bad input: a model that is not found, and errors of [`ModelConfig::read`].
    pub(in crate::cli) fn of(model: &str) -> Result<Self, CliError> {
        Self::read(&ModelFiles::resolve_config(model).map_err(CliError::bad_input)?)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Bad input: a file that cannot be read, or that is no JSON.
    pub(in crate::cli) fn read(path: &Path) -> Result<Self, CliError> {
        let name = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| CliError::bad(format!("cannot read {name}: {error}")))?;
        let value =
            python_json::from_str(&text).map_err(|error| CliError::bad(format!("{name} is no JSON: {error}")))?;
        Ok(Self {
            path: path.to_owned(),
            value,
        })
    }

    /// The dimensions, for other stacks: the family need not be known here.
    ///
    /// # Errors
    /// A dimension that is missing, no whole number or out of range.
    pub(in crate::cli) fn shape(&self) -> Result<ModelShape, StackError> {
        ModelShape::from_json(&self.path.display().to_string(), &self.value)
    }

    /// The architecture; `None` of a model that the built-in engine lacks.
    pub(in crate::cli) fn architecture(&self) -> Option<Architecture> {
        Architecture::from_object(&self.path, self.value.as_object()?).ok()
    }
}

/// The dimensions in a `config.json`, for other stacks: the family need not be known here.
///
/// # Errors
/// Bad input: a file that cannot be read, or lacks some of them.
pub(in crate::cli) fn model_shape(config: &Path) -> Result<ModelShape, CliError> {
    ModelConfig::read(config)?.shape().map_err(CliError::bad_input)
}
