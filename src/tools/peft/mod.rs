//! transformers' Trainer with PEFT's adapters, whose file is the adapter's (PEFT 0.21, transformers 5.23).

mod memory;

use super::row::ToolRow;

const NAME: &str = "peft";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &["transformers", "transformers+peft", "hf"],
    memory: memory::BEHAVIOUR,
};
