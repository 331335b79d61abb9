//! A copy of a trial with changes, as a page asks for it.

use std::collections::BTreeMap;

use serde::Deserialize;

use peft_tune_core::space::{SearchSpace, SettingError};
use peft_tune_core::study::{ParamValue, Params};

/// What a copy changes: `{"kind": "clone", "trial": 7, "changes": {"rank": 16}}`.
///
/// A page has the params of a trial rounded; so it names the trial and sends changes alone, and the rest is taken over as it is.
#[derive(Debug, Deserialize)]
pub(super) struct CopyRequest {
    /// Number of the trial to copy.
    pub trial: u64,
    /// New values by parameter; null leaves the parameter out.
    #[serde(default)]
    pub changes: BTreeMap<String, Option<ParamValue>>,
}

impl CopyRequest {
    /// The setting of the copy. What the trial has but the changes make inactive is left out.
    ///
    /// # Errors
    /// Where a change is not one of the space, or a parameter that the changes make active has no value.
    pub(super) fn setting(&self, trial: &Params, space: &SearchSpace) -> Result<Params, SettingError> {
        let mut wanted = trial.clone();
        for (name, value) in &self.changes {
            match value {
                Some(value) => wanted.insert(name.clone(), value.clone()),
                None => wanted.remove(name),
            };
        }
        for parameter in &space.parameters {
            if !space.is_active(parameter, &wanted) && !self.changes.contains_key(&parameter.name) {
                wanted.remove(&parameter.name);
            }
        }
        space.setting(&wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> SearchSpace {
        serde_json::from_value(serde_json::json!({"parameters": [
            {"name": "method", "distribution": {"kind": "categorical", "choices": ["lora", "full"]}},
            {"name": "rank", "distribution": {"kind": "categorical", "choices": [4, 8]},
             "condition": {"parameter": "method", "values": ["lora"]}},
        ]}))
        .unwrap()
    }

    fn copied(changes: serde_json::Value) -> Result<Params, SettingError> {
        let asked: CopyRequest = serde_json::from_value(serde_json::json!({"trial": 0, "changes": changes})).unwrap();
        let trial = Params::from([
            ("method".to_owned(), ParamValue::from("lora")),
            ("rank".to_owned(), ParamValue::Int(4)),
        ]);
        asked.setting(&trial, &space())
    }

    #[test]
    fn what_a_change_makes_inactive_goes_with_it() {
        let full = copied(serde_json::json!({"method": "full"})).unwrap();
        assert_eq!(full.keys().collect::<Vec<_>>(), ["method"]);
        assert_eq!(
            copied(serde_json::json!({"rank": 8})).unwrap()["rank"],
            ParamValue::Int(8)
        );
    }

    #[test]
    fn a_change_that_contradicts_another_is_refused() {
        let refused = copied(serde_json::json!({"method": "full", "rank": 8})).unwrap_err();
        assert!(refused.to_string().contains("`rank` does not exist"), "{refused}");
        let missing = copied(serde_json::json!({"rank": null})).unwrap_err();
        assert!(missing.to_string().contains("`rank` is missing"), "{missing}");
    }
}
