//! TRL's SFTTrainer and `trl sft` (TRL 1.16).

mod dataset_card;
mod export;
mod import;
mod keys;
mod known_keys;
mod memory;
mod mixture;
mod peft_example;
mod preference;

use super::import::{FileKind, ImportRow, Library};
use super::row::ToolRow;

const NAME: &str = "trl";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    title: "TRL",
    aliases: &["sft"],
    keys: keys::KEYS,
    known: known_keys::KNOWN,
    family: None,
    export: export::EXPORT,
    import: ImportRow {
        file: FileKind::Training,
        library: Some(Library::Trl),
        has_own_keys: |_| false,
        has_shared_keys: |keys| {
            [
                "model_name_or_path",
                "per_device_train_batch_size",
                "lora_r",
                "max_length",
            ]
            .iter()
            .any(|key| keys.has(key))
        },
        learns_completions: true,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
