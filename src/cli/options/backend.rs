//! Engines of trials, as options name them.

use serde::Serialize;

use crate::space::{Backend, Loader, TrlBackend};

/// An engine that trains recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum BackendName {
    /// The built-in training engine.
    #[default]
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
    /// TRL on models that unsloth loads, on a GPU.
    Unsloth,
}

impl BackendName {
    /// The engine whose models this loads; the built-in one without a loader.
    pub(in crate::cli) fn by(loader: Option<Loader>) -> Self {
        match loader {
            None => Self::Native,
            Some(Loader::Transformers) => Self::Trl,
            Some(Loader::Unsloth) => Self::Unsloth,
        }
    }

    /// What loads its models in a Python; `None` of the built-in engine.
    pub(in crate::cli) fn loader(self) -> Option<Loader> {
        match self {
            Self::Native => None,
            Self::Trl => Some(Loader::Transformers),
            Self::Unsloth => Some(Loader::Unsloth),
        }
    }

    /// The backend of that name, with the interpreter that a study file names.
    pub(in crate::cli) fn backend(self) -> Backend {
        match self.loader() {
            None => Backend::Native,
            Some(loader) => Backend::Trl(TrlBackend::by(loader)),
        }
    }

    /// The name, for people.
    pub(in crate::cli) fn text(self) -> &'static str {
        self.loader().map_or("the built-in engine", Loader::title)
    }
}

/// What a search is asked to train its trials in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum AskedBackend {
    /// The built-in training engine.
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
    /// TRL on models that unsloth loads, on a GPU.
    Unsloth,
    /// The built-in engine where it has the model's family and, on a GPU, passed its checks there; else TRL where a Python has it.
    Auto,
}
