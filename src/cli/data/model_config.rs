//! The `config.json` of a model of any family, and the dimensions in it.

use std::path::Path;

use crate::cli::CliError;
use crate::tools::plan::ModelConfig;
use peft_tune_core::predict::stack::ModelShape;
use peft_tune_engine::hub::ModelFiles;

/// Finds the `config.json` of a model's folder or hub id, and reads it.
///
/// # Errors
/// Bad input: a model that is not found, and errors of [`read_config`].
pub(in crate::cli) fn config_of(model: &str) -> Result<ModelConfig, CliError> {
    read_config(&ModelFiles::resolve_config(model).map_err(CliError::bad_input)?)
}

/// Reads a `config.json`.
///
/// # Errors
/// Bad input: a file that cannot be read, or that is no JSON.
pub(in crate::cli) fn read_config(path: &Path) -> Result<ModelConfig, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::bad(format!("cannot read {}: {error}", path.display())))?;
    ModelConfig::parse(path, &text).map_err(CliError::bad_input)
}

/// The dimensions in a `config.json`, for other stacks: the family need not be known here.
///
/// # Errors
/// Bad input: a file that cannot be read, or lacks some of them.
pub(in crate::cli) fn model_shape(config: &Path) -> Result<ModelShape, CliError> {
    read_config(config)?.shape().map_err(CliError::bad_input)
}
