//! torchtune (0.6).

mod memory;

use super::row::ToolRow;

const NAME: &str = "torchtune";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &[],
    memory: memory::BEHAVIOUR,
};
