//! [`ToolKeys`]: what a tool's file calls what recipes have.

use serde_json::Value;

use super::{Tool, transformers};
use peft_tune_core::recipe::settings::{SettingRow, settings};
use peft_tune_core::recipe::{AdapterInit, Checkpointing, OptimizerKind, Precision, ScheduleKind, TargetPreset};

/// What stands before the name of a module in an expression for all modules that end in it.
pub(in crate::tools) const ANYWHERE: &str = r"(?:.*\.)?";

/// A key of a tool's file with its value.
pub(crate) type Word = (&'static str, Value);

/// The words of a tool's file for what recipes have, in the order in which they are written; `None` where the tool has no such thing.
pub(crate) struct ToolKeys {
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
        preset: |_| None,
    };

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

impl Tool {
    /// The key of its file for a setting, where it has one.
    pub fn key_of(self, setting: &str) -> Option<&'static str> {
        self.keys().setting(setting)
    }

    /// The words of its file for an optimizer.
    pub fn optimizer_words(self, kind: OptimizerKind) -> Option<Vec<Word>> {
        (self.keys().optimizer)(kind)
    }
}

/// The setting that people or other tools call `name`.
pub fn setting_called(name: &str) -> Option<&'static SettingRow> {
    let name = name.to_lowercase();
    let is_key = |row: &SettingRow| {
        let mut keys = Tool::ALL.iter().flat_map(|tool| tool.keys().settings);
        keys.any(|(setting, key)| *setting == row.name && *key == name)
    };
    settings().find(|row| row.elsewhere.contains(&name.as_str()) || is_key(row))
}

/// The optimizer that another tool, or this one, calls `name`: `adamw_torch_fused` is AdamW.
pub fn optimizer_called(name: &str) -> Option<OptimizerKind> {
    let name = name.to_lowercase();
    let says = |kind: &OptimizerKind| {
        let mut words = Tool::ALL
            .iter()
            .filter_map(|tool| tool.optimizer_words(*kind))
            .flatten();
        words.any(|(key, value)| ["optim", "optimizer"].contains(&key) && value == name.as_str())
    };
    OptimizerKind::from_name(&name)
        .or_else(|| OptimizerKind::ALL.into_iter().find(says))
        .or_else(|| transformers::optimizer_called(&name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use OptimizerKind::{
        Adafactor, AdamW, AdamW8bit, AdamWScheduleFree, Lion, Lion8bit, PagedAdamW, PagedAdamW8bit, Sgd,
    };

    #[test]
    fn keys_are_those_of_settings_and_one_for_each() {
        let names: BTreeSet<&str> = settings().map(|row| row.name).collect();
        for tool in Tool::ALL {
            let mut seen = BTreeSet::new();
            for (setting, key) in tool.keys().settings {
                assert!(names.contains(setting), "{tool:?}: {setting}");
                assert!(seen.insert(setting), "{tool:?}: {setting} has two keys");
                assert!(setting_called(key).is_some(), "{tool:?}: {key}");
            }
        }
        assert_eq!(setting_called("LR").map(|row| row.name), Some("learning_rate"));
        assert_eq!(setting_called("wd").map(|row| row.name), Some("weight_decay"));
    }

    #[test]
    fn names_of_transformers_are_those_with_the_same_arithmetic() {
        // `OptimizerNames` of transformers 5.24; those without a row have no arithmetic here.
        for (name, kind) in [
            ("adamw_torch", Some(AdamW)),
            ("adamw_torch_fused", Some(AdamW)),
            ("adamw_torch_xla", Some(AdamW)),
            ("adamw_bnb_8bit", Some(AdamW8bit)),
            ("adamw_8bit", Some(AdamW8bit)),
            ("adamw_torch_8bit", Some(AdamW8bit)),
            ("adamw_torch_4bit", None),
            ("paged_adamw_32bit", Some(PagedAdamW)),
            ("paged_adamw_8bit", Some(PagedAdamW8bit)),
            ("lion_32bit", Some(Lion)),
            ("lion_8bit", Some(Lion8bit)),
            ("paged_lion_8bit", None),
            ("sgd", Some(Sgd)),
            ("adafactor", Some(Adafactor)),
            ("schedule_free_adamw", Some(AdamWScheduleFree)),
            ("schedule_free_sgd", None),
            ("galore_adamw", None),
        ] {
            assert_eq!(optimizer_called(name), kind, "{name}");
        }
        // A recipe has a name of its own for each.
        assert_eq!(OptimizerKind::from_name("adamw_bnb_8bit"), None);
    }
}
