//! Files of a model, in the form that a study's engine reads.

use crate::cli::CliError;
use crate::space::Backend;
use peft_tune_engine::hub::{DownloadObserver, ModelFiles};

/// Finds (or downloads) a model's files for what trains it; see [`ModelFiles::resolve_weights`].
///
/// # Errors
/// Bad input: a model that cannot be had, or whose weights the engine does not read.
pub(in crate::cli) fn files_for(
    backend: &Backend,
    model: &str,
    observer: &mut dyn DownloadObserver,
) -> Result<ModelFiles, CliError> {
    let found = match backend {
        Backend::Trl(_) => ModelFiles::resolve_for_transformers(model, observer),
        Backend::Native | Backend::Command(_) => ModelFiles::resolve_weights(model, observer),
    };
    found.map_err(CliError::bad_input)
}
