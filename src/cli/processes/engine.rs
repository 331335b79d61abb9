//! Engines between which `backend: auto` chooses.

use serde::Serialize;

/// An engine that trains recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Engine {
    /// The built-in one.
    Native,
    Trl,
}

impl Engine {
    /// The engine to take where both can train a study. Kernels of the built-in one were not checked against PyTorch's on a GPU.
    pub(in crate::cli) fn preferred(on_gpu: bool) -> Self {
        match on_gpu {
            true => Self::Trl,
            false => Self::Native,
        }
    }

    /// The engine's name, for people.
    pub(in crate::cli) fn text(self) -> &'static str {
        match self {
            Self::Native => "the built-in engine",
            Self::Trl => "TRL",
        }
    }
}
