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
        library: None,
        has_own_keys: |keys| {
            let of_training = ["finetuning_type", "cutoff_len", "lora_target", "stage"];
            // Files that train nothing.
            let of_models = ["adapter_name_or_path", "export_dir", "infer_backend"];
            let has = |all: &[&str]| all.iter().any(|key| keys.has(key));
            has(&of_training) || has(&of_models)
        },
        has_shared_keys: |_| false,
        learns_completions: false,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
