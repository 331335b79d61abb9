//! What this machine knows of a recipe's model and data, without the network.

use std::path::{Path, PathBuf};

use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::ModelShape;
use peft_tune_core::recipe::{DataFormat, DataSettings, Recipe};
use peft_tune_engine::data::{on_disk, recognise};
use peft_tune_engine::hub::{HubSettings, ModelFiles};
use peft_tune_engine::tokenizer::{Tokenizer, marked_template};

use super::model_config::read_config;
use crate::tools::export::AnswerMarks;

/// Facts that make an export more exact; each is absent where it cannot be found out.
pub(in crate::cli) struct KnownFacts {
    pub architecture: Option<Architecture>,
    /// The model's dimensions for other stacks, whose families need not be known here.
    pub shape: Option<ModelShape>,
    pub model_folder: Option<PathBuf>,
    pub data_format: Option<DataFormat>,
}

/// The marks of answers in the chat template that the recipe trains with; `None` where it has none and none can be put in.
pub(in crate::cli) fn answer_marks(recipe: &Recipe, model_folder: Option<&Path>) -> Option<AnswerMarks> {
    let tokenizer = tokenizer(recipe, model_folder?)?;
    let template = tokenizer.chat_template()?;
    match template.marks_answers() {
        true => Some(AnswerMarks::Own),
        false => marked_template(template).map(AnswerMarks::Written),
    }
}

/// The token with which the chat template of the recipe ends answers, where it is another than the end-of-text token.
pub(in crate::cli) fn turn_end(recipe: &Recipe, model_folder: Option<&Path>) -> Option<String> {
    let tokenizer = tokenizer(recipe, model_folder?)?;
    let end = tokenizer.turn_end().filter(|end| tokenizer.eos_id() != Some(*end))?;
    tokenizer.decode(&[end], false).ok()
}

/// The tokenizer of a model, with the chat template that the recipe names.
fn tokenizer(recipe: &Recipe, model_folder: &Path) -> Option<Tokenizer> {
    let files = ModelFiles::resolve_with(&model_folder.to_string_lossy(), &HubSettings::from_env().ok()?).ok()?;
    let tokenizer = Tokenizer::open(&files.tokenizer).ok()?;
    match &recipe.data.chat_template {
        Some(path) => tokenizer.with_chat_template(path).ok(),
        None => Some(tokenizer),
    }
}

impl KnownFacts {
    /// Looks at the model's `config.json` and at the first row of the data.
    pub(in crate::cli) fn of(recipe: &Recipe) -> Self {
        let model_folder = model_folder(&recipe.model);
        let config = model_folder
            .as_ref()
            .and_then(|folder| read_config(&folder.join("config.json")).ok());
        let data = on_disk(&recipe.data).unwrap_or_else(|_| recipe.data.clone());
        Self {
            shape: config.as_ref().and_then(|config| config.shape().ok()),
            architecture: config.and_then(|config| config.architecture()),
            data_format: format_of(&data),
            model_folder,
        }
    }
}

/// Format that all files are recognised as; `None` where they differ.
fn format_of(data: &DataSettings) -> Option<DataFormat> {
    let mut formats = data
        .train
        .files()
        .filter_map(|path| recognise(path, &data.columns).ok().flatten());
    let first = formats.next()?;
    formats.all(|format| format == first).then_some(first)
}

/// The folder with the model's files, if it is on this machine.
pub(in crate::cli) fn model_folder(model: &str) -> Option<PathBuf> {
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
