//! [`ToolKeys`]: what a tool's file calls what recipes have.

use serde_json::Value;

use peft_tune_core::recipe::{
    AdapterInit, AttentionImplementation, Checkpointing, OptimizerKind, Precision, ScheduleKind, TargetPreset,
};

/// What stands before the name of a module in an expression for all modules that end in it.
pub(crate) const ANYWHERE: &str = r"(?:.*\.)?";

/// A key of a tool's file with its value.
pub type Word = (&'static str, Value);

/// The words of a tool's file for what recipes have, in the order in which they are written; `None` where the tool has no such thing.
pub struct ToolKeys {
    /// Settings by name, each with its key.
    pub settings: &'static [(&'static str, &'static str)],
    pub optimizer: fn(OptimizerKind) -> Option<Vec<Word>>,
    pub precision: fn(Precision) -> Option<Vec<Word>>,
    pub checkpointing: fn(Checkpointing) -> Option<Vec<Word>>,
    pub schedule: fn(ScheduleKind) -> Option<Vec<Word>>,
    /// Words for a schedule behind a warm-up, where some tool calls it otherwise then.
    pub schedule_after_warmup: fn(ScheduleKind) -> Option<Vec<Word>>,
    /// The key of a map with the schedule's arguments; they stand beside its name where there is none.
    pub schedule_arguments: Option<&'static str>,
    pub init: fn(AdapterInit) -> Option<Vec<Word>>,
    pub attention: fn(AttentionImplementation) -> Option<Vec<Word>>,
    /// The attention that its file names for a recipe that leaves it open.
    pub usual_attention: AttentionImplementation,
    /// What all modules of a shorthand are called; `None` where the modules are listed.
    pub preset: fn(TargetPreset) -> Option<Vec<Word>>,
}

impl ToolKeys {
    /// Keys of a tool whose file says nothing.
    pub(crate) const NONE: Self = Self {
        settings: &[],
        optimizer: |_| None,
        precision: |_| None,
        checkpointing: |_| None,
        schedule: |_| None,
        schedule_after_warmup: |_| None,
        schedule_arguments: None,
        init: |_| None,
        attention: |_| None,
        usual_attention: AttentionImplementation::Auto,
        preset: |_| None,
    };

    /// The attention that the file names where the recipe leaves it open: packed documents keep apart in flash attention alone.
    pub(crate) fn attention_where_open(&self, packs: bool) -> AttentionImplementation {
        match packs {
            true => AttentionImplementation::Flash2,
            false => self.usual_attention,
        }
    }

    /// The key of a setting.
    pub(crate) fn setting(&self, name: &str) -> Option<&'static str> {
        let found = self.settings.iter().find(|(setting, _)| *setting == name);
        found.map(|(_, key)| *key)
    }
}

/// Writes words as a list of `key: value`.
macro_rules! words {
    ($($key:literal : $value:expr),* $(,)?) => {
        Some(vec![$(($key, serde_json::json!($value))),*])
    };
}

pub(super) use words;
