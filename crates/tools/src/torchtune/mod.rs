//! torchtune (0.6).

mod builders;
mod dataset;
mod export;
mod families;
mod import;
mod keys;
mod known_keys;
mod length;
mod memory;
mod model;
mod refused;

use serde_json::json;

use super::import::{FileKind, ImportRow};
use super::row::ToolRow;
use families::TorchtuneFamily;

const NAME: &str = "torchtune";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    title: "torchtune",
    aliases: &[],
    keys: keys::KEYS,
    known: known_keys::KNOWN,
    family: Some(|family| json!(TorchtuneFamily::of(family))),
    export: export::EXPORT,
    import: ImportRow {
        file: FileKind::Training,
        library: None,
        has_own_keys: |keys| {
            // A training by PPO has several models.
            let mut models = ["model", "policy_model"]
                .iter()
                .filter_map(|key| keys.part(key, "model."));
            models.any(|model| model.has("_component_"))
        },
        has_shared_keys: |_| false,
        learns_completions: false,
        read: import::read,
    },
    memory: memory::BEHAVIOUR,
};
