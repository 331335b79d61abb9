//! axolotl (0.19).

mod export;
mod import;
mod keys;
mod known_keys;
mod memory;

use super::import::{FileKind, ImportRow};
use super::row::ToolRow;

const NAME: &str = "axolotl";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    title: "axolotl",
    aliases: &[],
    keys: keys::KEYS,
    known: known_keys::KNOWN,
    family: None,
    export: export::EXPORT,
    import: ImportRow {
        file: FileKind::Training,
        library: None,
        has_own_keys: |keys| {
            ["base_model", "micro_batch_size", "sequence_len", "lora_target_linear"]
                .iter()
                .any(|key| keys.has(key))
        },
        has_shared_keys: |_| false,
        learns_completions: false,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
