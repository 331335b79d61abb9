//! Engines of trials, as options name them.

use serde::Serialize;

use crate::space::{Backend, TrlBackend};

/// An engine that trains recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum BackendName {
    /// The built-in training engine.
    #[default]
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
}

impl BackendName {
    /// The backend of that name, with the interpreter that a study file names.
    pub(in crate::cli) fn backend(self) -> Backend {
        match self {
            Self::Native => Backend::Native,
            Self::Trl => Backend::Trl(TrlBackend::default()),
        }
    }

    /// The name, for people.
    pub(in crate::cli) fn text(self) -> &'static str {
        match self {
            Self::Native => "the built-in engine",
            Self::Trl => "TRL",
        }
    }
}

/// What a search is asked to train its trials in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum AskedBackend {
    /// The built-in training engine.
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
    /// The built-in engine where it has the model's family and, on a GPU, passed its checks there; else TRL where a Python has it.
    Auto,
}
