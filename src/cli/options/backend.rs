//! The engines of trials that options name.

/// An engine that trains recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum BackendName {
    /// The built-in training engine.
    #[default]
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
}
