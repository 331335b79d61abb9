//! axolotl (0.19).

mod memory;

use super::row::ToolRow;

const NAME: &str = "axolotl";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &[],
    memory: memory::BEHAVIOUR,
};
