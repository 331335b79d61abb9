//! Settings and optimizers by the names that people and other tools have for them.

use super::{Tool, transformers};
use peft_tune_core::recipe::OptimizerKind;
use peft_tune_core::recipe::settings::{SettingRow, settings};

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
