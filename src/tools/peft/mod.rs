//! transformers' Trainer with PEFT's adapters, whose file is the adapter's (PEFT 0.21, transformers 5.23).

pub(super) mod keys;
mod memory;

use super::row::ToolRow;

const NAME: &str = "peft";

pub(super) const ROW: ToolRow = ToolRow {
    name: NAME,
    aliases: &["transformers", "transformers+peft", "hf"],
    keys: keys::KEYS,
    family: None,
    memory: memory::BEHAVIOUR,
};
