//! What is known of a study before its file is written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::machine::Machine;
use peft_tune_core::recipe::DataFormat;

/// A format's names of columns, and the data's own.
pub(crate) type Renames = BTreeMap<String, String>;

/// What the file is written from.
pub(crate) struct Answers {
    pub model: String,
    pub data: PathBuf,
    pub format: DataFormat,
    pub columns: Renames,
    /// The columns of prompts and completions, where these are trained as chats instead.
    pub as_plain: Option<Renames>,
    pub memory_bytes: u64,
    pub machine: Machine,
}

/// The data's own name of a column.
pub(crate) fn column(columns: &Renames, name: &str) -> String {
    columns.get(name).cloned().unwrap_or_else(|| name.to_owned())
}
