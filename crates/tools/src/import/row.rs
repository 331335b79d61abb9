//! [`ImportRow`]: how a tool's file is told and read.

use super::{Keys, Library, Reader, StackFileError};

/// What a tool's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// The adapter alone, which every tool on PEFT takes.
    Adapter,
    /// All of a training.
    Training,
    /// A program in Python.
    Script,
}

/// What is to be known of reading a tool's file.
pub(crate) struct ImportRow {
    pub file: FileKind,
    /// Library whose scripts train in the tool, where there is one.
    pub library: Option<Library>,
    /// Whether some keys are the tool's, and no other's.
    pub has_own_keys: fn(&Keys<'_>) -> bool,
    /// Whether some keys are the tool's, where they are not another's own.
    pub has_shared_keys: fn(&Keys<'_>) -> bool,
    /// Whether the tool trains on the completions alone of prompts with completions, where the file says nothing of them.
    pub learns_completions: bool,
    /// Reads the file: the recipe, and what the file says of the tool's training beside it, such as kernels.
    pub read: fn(&mut Reader<'_>) -> Result<(), StackFileError>,
}
