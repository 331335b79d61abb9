//! transformers' Trainer with PEFT's adapters, whose file is the adapter's (PEFT 0.21, transformers 5.23).

pub(super) mod export;
mod import;
pub(super) mod keys;
pub(super) mod known_keys;
mod memory;

use super::import::{FileKind, ImportRow, Library};
use super::row::ToolRow;

const NAME: &str = "peft";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    title: "PEFT",
    aliases: &["transformers", "transformers+peft", "hf"],
    keys: keys::KEYS,
    known: known_keys::KNOWN,
    family: None,
    export: export::EXPORT,
    import: ImportRow {
        file: FileKind::Adapter,
        library: Some(Library::Transformers),
        has_own_keys: |keys| keys.has("peft_type"),
        has_shared_keys: |_| false,
        learns_completions: false,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
