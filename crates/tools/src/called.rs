//! Settings and optimizers by the names that people and other tools have for them.

use super::Tool;
use super::optimizer_names::{self, CalledOptimizer};
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

/// What the optimizer is here that a tool calls `name`, or whose class it is; `None` where nobody calls one so.
pub(crate) fn optimizer_called(name: &str) -> Option<CalledOptimizer> {
    let name = name.to_lowercase();
    // A class stands behind its package.
    let name = name.rsplit('.').next().unwrap_or(&name);
    let says = |kind: &OptimizerKind| {
        let mut words = Tool::ALL
            .iter()
            .filter_map(|tool| tool.optimizer_words(*kind))
            .flatten();
        words.any(|(key, value)| ["optim", "optimizer"].contains(&key) && value == name)
    };
    OptimizerKind::from_name(name)
        .or_else(|| OptimizerKind::ALL.into_iter().find(says))
        .map(CalledOptimizer::from)
        .or_else(|| optimizer_names::named(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
}
