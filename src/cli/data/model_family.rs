//! Families of models: what a `config.json` tells of one that the built-in engine has, and of one that only TRL may train.

use std::path::Path;

use serde_json::Value;

use super::model_config::read_config;
use crate::cli::CliError;
use crate::space::Loader;
use crate::tune::Width;
use peft_tune_core::architecture::{Architecture, ArchitectureError};
use peft_tune_core::predict::stack::{ModelShape, StackError};
use peft_tune_engine::data::{DataError, PreparedData};

/// Way out of a search whose model the built-in engine lacks.
pub(in crate::cli) const SEARCH_IN_TRL: &str =
    "or search with `--backend trl`, which trains any model that transformers loads";
/// Way out of a training whose model the built-in engine lacks.
pub(in crate::cli) const TRAIN_IN_TRL: &str = "or let TRL train it, which takes any model that transformers loads: search with \
                                               `--backend trl`, and take what `export --format trl` writes";

/// A model as far as its `config.json` tells.
#[derive(Debug)]
pub(in crate::cli) enum ModelFamily {
    /// A family of the built-in engine.
    Known(Box<Architecture>),
    /// A family, or a form of one, that the engine lacks.
    Other(Box<OtherFamily>),
}

/// A model that the built-in engine lacks.
#[derive(Debug)]
pub(in crate::cli) struct OtherFamily {
    pub model_type: String,
    /// Dimensions, or why they cannot be read.
    pub shape: Result<ModelShape, StackError>,
    /// Whether the language model is a part of a larger one.
    pub is_within: bool,
    /// What the engine lacks, in few words.
    pub lack: String,
}

impl ModelFamily {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Bad input: a file that cannot be read, is no JSON or names no `model_type`.
    pub(in crate::cli) fn read(config: &Path) -> Result<Self, CliError> {
        match Architecture::from_config(config) {
            Ok(architecture) => Ok(Self::Known(Box::new(architecture))),
            Err(error @ (ArchitectureError::Read { .. } | ArchitectureError::Json { .. })) => {
                Err(CliError::bad_input(error))
            }
            Err(error) => Ok(Self::Other(Box::new(OtherFamily::read(config, error)?))),
        }
    }

    /// The architecture of a family that the built-in engine has.
    pub(in crate::cli) fn architecture(&self) -> Option<&Architecture> {
        match self {
            Self::Known(architecture) => Some(architecture),
            Self::Other(_) => None,
        }
    }

    /// The family's name.
    pub(in crate::cli) fn name(&self) -> &str {
        match self {
            Self::Known(architecture) => architecture.family.name(),
            Self::Other(other) => &other.model_type,
        }
    }

    /// Number of parameters; `None` where it would be a guess.
    pub(in crate::cli) fn parameters(&self) -> Option<u64> {
        let architecture = self.architecture()?;
        Some(architecture.parameter_count().total())
    }

    /// What the usual learning rate goes by, where it can be read.
    pub(in crate::cli) fn width(&self) -> Option<Width> {
        match self {
            Self::Known(architecture) => Some(Width::from(&**architecture)),
            Self::Other(other) => Some(Width {
                family: None,
                hidden_size: other.shape.as_ref().ok()?.hidden as usize,
            }),
        }
    }

    /// Refuses data that every training of the model would fail on, as far as its dimensions can be read.
    ///
    /// # Errors
    /// Errors of [`PreparedData::check_fits`].
    pub(in crate::cli) fn check_fits(&self, data: &PreparedData) -> Result<(), DataError> {
        match self {
            Self::Known(architecture) => data.check_fits(architecture),
            Self::Other(other) => match &other.shape {
                Ok(shape) => {
                    let positions = shape.max_positions.map(|positions| positions as usize);
                    data.check_bounds(shape.vocabulary as usize, positions)
                }
                Err(_) => Ok(()),
            },
        }
    }
}

impl OtherFamily {
    /// Reads a file that the engine refuses for this reason.
    fn read(config: &Path, refused: ArchitectureError) -> Result<Self, CliError> {
        let config = read_config(config)?;
        // Without one no program knows what to load.
        let Some(model_type) = config.value.get("model_type").and_then(Value::as_str) else {
            return Err(CliError::bad_input(refused));
        };
        Ok(Self {
            model_type: model_type.to_owned(),
            shape: config.shape(),
            is_within: config.value.get("text_config").is_some_and(Value::is_object),
            lack: match &refused {
                ArchitectureError::UnknownFamily { .. } => format!("it lacks the family `{model_type}`"),
                other => other.to_string(),
            },
        })
    }

    /// Why a name for some of the linear layers, such as `attention`, means nothing of this model, and what to write.
    /// `modules` are the ends of the names of its matrices, where they are known.
    pub(in crate::cli) fn refusal_of(&self, preset: &str, modules: &[&str]) -> String {
        let called = match modules {
            [] => String::new(),
            modules => format!(" (its checkpoint has the matrices {})", modules.join(", ")),
        };
        format!(
            "which linear layers of `{}` are its `{preset}` is not known here; write all-linear, which PEFT itself takes apart, or \
             the names of modules{called}",
            self.model_type
        )
    }

    /// Refuses the model where trials on models of this loader do not have it.
    ///
    /// # Errors
    /// Bad input: unsloth, as far as it is known here.
    pub(in crate::cli) fn check_for(&self, loader: Loader) -> Result<(), CliError> {
        match loader {
            Loader::Transformers => Ok(()),
            Loader::Unsloth => Err(CliError::bad(self.not_in_unsloth())),
        }
    }

    /// Why trials in unsloth do not have the model.
    pub(in crate::cli) fn not_in_unsloth(&self) -> String {
        format!(
            "trials in unsloth have models of the built-in engine's families so far ({}); search with `--backend trl`",
            self.lack
        )
    }
}

/// The dimensions of a model that the built-in engine is to train.
///
/// # Errors
/// Bad input: a file that cannot be read; a model that the engine lacks, whose message ends in `way_out`.
pub(in crate::cli) fn architecture_of(config: &Path, way_out: &str) -> Result<Architecture, CliError> {
    Architecture::from_config(config).map_err(|error| match error {
        ArchitectureError::UnknownFamily { .. } | ArchitectureError::Unsupported { .. } => {
            CliError::bad(format!("{error}; {way_out}"))
        }
        other => CliError::bad_input(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ModelFamily, String> {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, text).unwrap();
        ModelFamily::read(&config).map_err(|error| error.to_string())
    }

    fn other(text: &str) -> Box<OtherFamily> {
        match read(text).unwrap() {
            ModelFamily::Other(other) => other,
            ModelFamily::Known(known) => panic!("{} is known", known.family.name()),
        }
    }

    #[test]
    fn a_family_that_the_engine_lacks_is_known_by_its_dimensions() {
        let text = r#"{"model_type": "falcon_h1", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "vocab_size": 512, "mamba_d_state": 16}"#;
        let found = read(text).unwrap();
        assert_eq!((found.name(), found.parameters()), ("falcon_h1", None));
        let width = found.width().unwrap();
        assert_eq!((width.family, width.hidden_size), (None, 64));
        let other = other(text);
        assert_eq!(other.lack, "it lacks the family `falcon_h1`");
        assert_eq!(other.shape.as_ref().unwrap().vocabulary, 512);
        assert!(!other.is_within);
        assert!(other.check_for(Loader::Transformers).is_ok());
        let refused = other.check_for(Loader::Unsloth).map_err(|error| error.to_string());
        assert_eq!(refused, Err(other.not_in_unsloth()));
        let refusal = other.refusal_of("mlp", &["in_proj", "q_proj"]);
        assert!(
            refusal.contains("`mlp`") && refusal.contains("in_proj, q_proj"),
            "{refusal}"
        );
    }

    #[test]
    fn dimensions_that_cannot_be_read_are_said_to_be_so() {
        let text = r#"{"model_type": "gemma3n", "text_config": {"hidden_size": 64, "num_hidden_layers": 2,
                       "num_attention_heads": 4, "intermediate_size": [128, 128], "vocab_size": 512}}"#;
        let other = other(text);
        let reason = other.shape.as_ref().unwrap_err().to_string();
        assert!(reason.contains("intermediate_size"), "{reason}");
        assert!(other.is_within);
    }

    #[test]
    fn what_is_no_model_is_refused() {
        assert!(read("{").unwrap_err().contains("not valid JSON"));
        assert!(read("{}").unwrap_err().contains("model_type"));
    }
}
