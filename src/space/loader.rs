//! [`Loader`]: what loads the models that TRL's trainer trains.

use crate::tools::Tool;

/// Library that loads the models of trials in a Python and gives them their adapters; TRL's trainer trains them in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loader {
    /// transformers and PEFT.
    #[default]
    Transformers,
    /// unsloth, with kernels of its own.
    Unsloth,
}

impl Loader {
    /// All loaders.
    const ALL: [Self; 2] = [Self::Transformers, Self::Unsloth];

    /// The loader of trials in this tool; `None` of a tool that no worker trains in.
    pub fn of(tool: Tool) -> Option<Self> {
        Self::ALL.into_iter().find(|loader| loader.tool() == tool)
    }

    /// The tool whose file says what a trial trains.
    pub fn tool(self) -> Tool {
        match self {
            Self::Transformers => Tool::Trl,
            Self::Unsloth => Tool::Unsloth,
        }
    }

    /// Name of the backend that has it, as study files write it.
    pub fn name(self) -> &'static str {
        self.tool().name()
    }

    /// The backend as messages call it.
    pub fn title(self) -> &'static str {
        self.tool().title()
    }

    /// Whether trials are to run on GPUs alone: unsloth has its kernels there.
    pub fn needs_gpu(self) -> bool {
        self == Self::Unsloth
    }

    /// Whether a process has one trial: unsloth changes PyTorch, transformers and TRL for all of it, and says nothing of putting
    /// that back.
    pub fn ends_with_trial(self) -> bool {
        self == Self::Unsloth
    }
}
