//! What is known of a study before its file is written.

use std::path::PathBuf;

use super::columns::Renames;
use super::find::Machine;
use peft_tune_core::recipe::DataFormat;

/// What the file is written from.
pub(super) struct Answers {
    pub model: String,
    pub data: PathBuf,
    pub format: DataFormat,
    pub columns: Renames,
    /// The columns of prompts and completions, where these are trained as chats instead.
    pub as_plain: Option<Renames>,
    pub memory_bytes: u64,
    pub machine: Machine,
}
