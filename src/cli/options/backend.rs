//! Engines of trials, as options name them.

/// An engine that trains recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum BackendName {
    /// The built-in training engine.
    #[default]
    Native,
    /// TRL on PyTorch, in a Python that has both.
    Trl,
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
