//! The base model that `init` is asked for: whether there can be such a one, and what family it is of.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::data::known_offline::model_folder;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::terminal::output::tell;

/// Whether it is a model on this machine, or could be one on the hub.
pub(super) fn check_model(model: &str) -> Result<(), CliError> {
    let is_path = Path::new(model).is_absolute() || model.starts_with('.') || model.matches('/').count() != 1;
    if is_path && model_folder(model).is_none() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "no model at {model}: name a directory with config.json, or a hub id such as Qwen/Qwen2.5-0.5B"
        )));
    }
    Ok(())
}

/// The model's family where it is on this machine; a hub id that is not is planned for without.
pub(super) fn family(model: &str) -> Result<Option<ModelFamily>, CliError> {
    check_model(model)?;
    let Some(folder) = model_folder(model) else {
        tell(format_args!(
            "{model} is not on this machine yet: `search` downloads it; nothing is left out for its size"
        ));
        return Ok(None);
    };
    let family = ModelFamily::read(&folder.join("config.json"))?;
    if let ModelFamily::Other(other) = &family {
        tell(format_args!(
            "the built-in engine does not train this model ({}): the file says `backend: trl`, and nothing is left out for its size",
            other.lack
        ));
    }
    Ok(Some(family))
}
