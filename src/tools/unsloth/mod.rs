//! unsloth (2026.10), whose settings are a script.

mod keys;
mod memory;

use super::row::ToolRow;

const NAME: &str = "unsloth";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &[],
    keys: keys::KEYS,
    family: None,
    memory: memory::BEHAVIOUR,
};
