//! Words for what told the tool of a settings file.

use super::{FileKind, Keys, is_script};
use crate::tools::Tool;

/// Says what told that a file is for `tool`, beside what was asked for.
pub(super) fn what_told(tool: Tool, asked: Option<Tool>, keys: &Keys<'_>) -> &'static str {
    let row = tool.import();
    let is_own = (row.has_own_keys)(keys);
    let is_of_adapter = |one: &Tool| one.import().file == FileKind::Adapter && (one.import().has_own_keys)(keys);
    match asked {
        Some(_) if is_own && row.file != FileKind::Adapter => "by keys that no other tool has",
        Some(asked) if asked == tool => "as --stack says",
        _ if Tool::ALL.iter().any(is_of_adapter) => {
            "by the adapter's config, which says nothing of the training: --stack names another tool"
        }
        _ if is_script(keys.path()) => "by what the script imports",
        _ if is_own => "by keys that no other tool has",
        _ => "by keys of transformers' Trainer, which other tools have too: --stack names another",
    }
}
