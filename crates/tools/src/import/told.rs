//! Words for what told the tool of a settings file.

use super::{FileKind, Keys};
use crate::Tool;

/// What is asked for on the command line.
const ASKED: &str = "as --stack says";

/// What told that a file is for `tool`, beside what was asked for.
pub(super) fn what_told(tool: Tool, asked: Option<Tool>, keys: &Keys<'_>) -> &'static str {
    let row = tool.import();
    let is_own = (row.has_own_keys)(keys);
    let is_of_adapter = |one: &Tool| one.import().file == FileKind::Adapter && (one.import().has_own_keys)(keys);
    match asked {
        Some(_) if is_own && row.file != FileKind::Adapter => "by keys that no other tool has",
        Some(asked) if asked == tool => ASKED,
        _ if Tool::ALL.iter().any(is_of_adapter) => {
            "by the adapter's config, which says nothing of the training: --stack names another tool"
        }
        _ if is_own => "by keys that no other tool has",
        _ => "by keys of transformers' Trainer, which other tools have too: --stack names another",
    }
}

/// What told the tool that trains from a script, which is the first of `tools`, beside what was asked for.
pub(super) fn what_told_of_script([trains, _]: [Tool; 2], asked: Option<Tool>) -> &'static str {
    match asked {
        Some(asked) if asked == trains => ASKED,
        _ => "by what the script imports",
    }
}
