//! LLaMA-Factory (0.9.5).

mod export;
mod import;
mod keys;
mod known_keys;
mod memory;

use super::import::{FileKind, ImportRow};
use super::row::ToolRow;

const NAME: &str = "llamafactory";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    title: "LLaMA-Factory",
    aliases: &["llama-factory"],
    keys: keys::KEYS,
    known: known_keys::KNOWN,
    family: None,
    export: export::EXPORT,
    import: ImportRow {
        file: FileKind::Training,
        has_own_keys: |keys| {
            ["finetuning_type", "cutoff_len", "lora_target", "stage"]
                .iter()
                .any(|key| keys.has(key))
        },
        has_shared_keys: |_| false,
        learns_completions: false,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
