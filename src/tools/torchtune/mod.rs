//! torchtune (0.6).

mod families;
mod keys;
mod memory;

use serde_json::json;

pub(crate) use families::TorchtuneFamily;

use super::row::ToolRow;

const NAME: &str = "torchtune";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &[],
    keys: keys::KEYS,
    family: Some(|family| json!(TorchtuneFamily::of(family))),
    memory: memory::BEHAVIOUR,
};
