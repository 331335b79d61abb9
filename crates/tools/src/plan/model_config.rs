//! [`ModelConfig`]: a model's `config.json`, and what a plan takes of it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::PlanError;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::{ModelShape, StackError};
use peft_tune_core::python_json;

/// Contents of a `config.json`.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    file: PathBuf,
    /// Whatever the file holds.
    pub value: Value,
}

impl ModelConfig {
    /// Reads a text; `file` names it in errors.
    ///
    /// # Errors
    /// A text that is no JSON.
    pub fn parse(file: &Path, text: &str) -> Result<Self, PlanError> {
        let value = python_json::from_str(text).map_err(|reason| PlanError::NoJson {
            file: file.to_owned(),
            reason,
        })?;
        Ok(Self {
            file: file.to_owned(),
            value,
        })
    }

    /// The dimensions, for which the family need not be known.
    ///
    /// # Errors
    /// A dimension that is missing, no whole number or out of range.
    pub fn shape(&self) -> Result<ModelShape, StackError> {
        ModelShape::from_json(&self.file.display().to_string(), &self.value)
    }

    /// The model as its modules are called; `None` of a family that is not known.
    pub fn architecture(&self) -> Option<Architecture> {
        Architecture::from_object(&self.file, self.value.as_object()?).ok()
    }
}
