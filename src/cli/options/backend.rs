//! Engines of trials, as options name them.

use crate::space::{Backend, TrlBackend};

/// An engine that trains recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
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
}

/// What a search is asked to train its trials in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum AskedBackend {
    /// The built-in training engine.
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
    /// The built-in engine where it has the model's family and trials run on the CPU, else TRL where a Python has it.
    Auto,
}
