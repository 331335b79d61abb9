//! TRL's SFTTrainer and `trl sft` (TRL 1.16).

mod keys;
mod memory;

use super::row::ToolRow;

const NAME: &str = "trl";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &["sft"],
    keys: keys::KEYS,
    family: None,
    memory: memory::BEHAVIOUR,
};
