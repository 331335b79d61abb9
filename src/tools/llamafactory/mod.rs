//! LLaMA-Factory (0.9.5).

mod keys;
mod memory;

use super::row::ToolRow;

const NAME: &str = "llamafactory";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &["llama-factory"],
    keys: keys::KEYS,
    family: None,
    memory: memory::BEHAVIOUR,
};
