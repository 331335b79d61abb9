//! unsloth (2026.10), whose settings are a script.

mod memory;

use super::row::ToolRow;

const NAME: &str = "unsloth";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &[],
    memory: memory::BEHAVIOUR,
};
