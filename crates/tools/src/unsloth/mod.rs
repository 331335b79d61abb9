//! unsloth (2026.10), whose settings are a script.

mod export;
mod import;
mod keys;
mod known_keys;
mod memory;

use super::import::{FileKind, ImportRow, Library};
use super::row::ToolRow;

const NAME: &str = "unsloth";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    title: "unsloth",
    aliases: &[],
    keys: keys::KEYS,
    known: known_keys::KNOWN,
    family: None,
    export: export::EXPORT,
    import: ImportRow {
        file: FileKind::Script,
        library: Some(Library::Unsloth),
        has_own_keys: |_| false,
        has_shared_keys: |_| false,
        learns_completions: true,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
