//! Errors in a `config.json`.

use std::path::PathBuf;

/// A model configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchitectureError {
    #[error("cannot read {path}: {source}; a model directory holds config.json, *.safetensors and tokenizer.json")]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{path} is not valid JSON: {source}; download the model again")]
    Json { path: PathBuf, source: serde_json::Error },

    #[error("key `{key}` is missing in {path}; copy it from the published config.json of this model")]
    Missing { path: PathBuf, key: String },

    #[error("key `{key}` in {path} is {got}, but must be {expected}")]
    WrongType {
        path: PathBuf,
        key: String,
        expected: &'static str,
        got: String,
    },

    #[error(
        "model_type `{model_type}` in {path} is not supported; {}; take a model of one of these types: {}",
        way_out(nearest, missing),
        supported.join(", ")
    )]
    UnknownFamily {
        path: PathBuf,
        model_type: String,
        /// The family that is most like it by its name.
        nearest: &'static str,
        /// Features that the file asks for and no family has.
        missing: Vec<String>,
        supported: Vec<&'static str>,
    },

    #[error(
        "model_type `{model_type}` in {path} is not supported yet: it needs {lacks}; docs/mixtures.md has the mixtures that run"
    )]
    Unfinished {
        path: PathBuf,
        model_type: String,
        lacks: &'static str,
    },

    #[error("key `{key}` in {path} asks for `{value}`, which is not supported; supported: {supported}")]
    Unsupported {
        path: PathBuf,
        key: String,
        value: String,
        supported: &'static str,
    },

    #[error("key `{key}` in {path} is {value}, but must be {rule}; check it against the published config.json")]
    Impossible {
        path: PathBuf,
        key: String,
        value: String,
        rule: String,
    },
}

fn way_out(nearest: &str, missing: &[String]) -> String {
    match missing {
        [] => format!(
            "the nearest family is `{nearest}`: if the layers are those of it, `peft-tune adopt --as-family {nearest}` checks \
             that and makes a model folder that says so"
        ),
        missing => format!(
            "the nearest family is `{nearest}`, but the file asks for {}, which is not there",
            missing.join(", ")
        ),
    }
}
