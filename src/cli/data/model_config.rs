//! The `config.json` of a model of any family, and the dimensions in it.

use std::path::Path;

use serde_json::Value;

use crate::cli::CliError;
use peft_tune_core::predict::stack::ModelShape;
use peft_tune_core::python_json;

/// The contents of a `config.json`.
///
/// # Errors
/// Bad input: a file that cannot be read, or that is no JSON.
pub(super) fn read_config(config: &Path) -> Result<Value, CliError> {
    let name = config.display();
    let text =
        std::fs::read_to_string(config).map_err(|error| CliError::bad(format!("cannot read {name}: {error}")))?;
    python_json::from_str(&text).map_err(|error| CliError::bad(format!("{name} is no JSON: {error}")))
}

/// The dimensions in a `config.json`, for other stacks: the family need not be known here.
///
/// # Errors
/// Bad input: a file that cannot be read, or lacks some of them.
pub(in crate::cli) fn model_shape(config: &Path) -> Result<ModelShape, CliError> {
    ModelShape::from_json(&config.display().to_string(), &read_config(config)?).map_err(CliError::bad_input)
}
