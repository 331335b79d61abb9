//! TRL's SFTTrainer and `trl sft` (TRL 1.16).

mod memory;

use super::row::ToolRow;

const NAME: &str = "trl";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &["sft"],
    memory: memory::BEHAVIOUR,
};
