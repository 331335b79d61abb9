//! The `config.json` of a model of any family, and the dimensions in it.

use std::path::Path;

use serde_json::Value;

use crate::cli::CliError;
use crate::tools::plan::ModelConfig;
use peft_tune_core::predict::stack::ModelShape;
use peft_tune_core::python_json;
use peft_tune_engine::hub::ModelFiles;

/// The contents of a `config.json`.
///
/// # Errors
/// Bad input: a file that cannot be read, or that is no JSON.
pub(super) fn read_config(config: &Path) -> Result<Value, CliError> {
    let text = read_text(config)?;
    python_json::from_str(&text).map_err(|error| CliError::bad(format!("{} is no JSON: {error}", config.display())))
}

fn read_text(config: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(config).map_err(|error| CliError::bad(format!("cannot read {}: {error}", config.display())))
}

/// The `config.json` of a model's folder or hub id, as plans for other stacks take it.
///
/// # Errors
/// Bad input: a model that is not found, a file that cannot be read, or that is no JSON.
pub(in crate::cli) fn config_of(model: &str) -> Result<ModelConfig, CliError> {
    let file = ModelFiles::resolve_config(model).map_err(CliError::bad_input)?;
    ModelConfig::parse(&file, &read_text(&file)?).map_err(CliError::bad_input)
}

/// The dimensions in a `config.json`, for other stacks: the family need not be known here.
///
/// # Errors
/// Bad input: a file that cannot be read, or lacks some of them.
pub(in crate::cli) fn model_shape(config: &Path) -> Result<ModelShape, CliError> {
    ModelShape::from_json(&config.display().to_string(), &read_config(config)?).map_err(CliError::bad_input)
}
