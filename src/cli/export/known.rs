//! What this machine knows of a recipe's model and data, without the network.

use std::path::{Path, PathBuf};

use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{DataFormat, Recipe};
use peft_tune_engine::data::recognise;
use peft_tune_engine::hub::{HubSettings, ModelFiles};

/// Facts that make an export more exact; each is absent where it cannot be found out.
pub struct KnownFacts {
    pub architecture: Option<Architecture>,
    pub model_folder: Option<PathBuf>,
    pub data_format: Option<DataFormat>,
}

impl KnownFacts {
    /// Looks at the model's `config.json` and at the first row of the data.
    pub fn of(recipe: &Recipe) -> Self {
        let model_folder = model_folder(&recipe.model);
        let config = model_folder.as_ref().map(|folder| folder.join("config.json"));
        let first = recipe.data.train.first();
        Self {
            architecture: config.and_then(|config| Architecture::from_config(&config).ok()),
            data_format: first.and_then(|path| recognise(path, &recipe.data.columns).ok().flatten()),
            model_folder,
        }
    }
}

/// The folder with the model's files, if it is on this machine.
pub fn model_folder(model: &str) -> Option<PathBuf> {
    if Path::new(model).is_dir() {
        return Some(PathBuf::from(model));
    }
    let settings = HubSettings {
        offline: true,
        ..HubSettings::from_env().ok()?
    };
    ModelFiles::resolve_with(model, &settings)
        .ok()
        .map(|files| files.folder)
}
