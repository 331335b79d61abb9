//! axolotl (0.19).

mod keys;
mod memory;

use super::row::ToolRow;

const NAME: &str = "axolotl";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &[],
    keys: keys::KEYS,
    family: None,
    memory: memory::BEHAVIOUR,
};
