//! [`KnownKeys`]: keys of a tool's own schema that no recipe has, by what each changes.

use serde_json::Value;

/// Keys that a tool knows beside those that are taken over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownKeys {
    /// Versions of the tool whose schemas the names are from.
    pub version: &'static str,
    /// Lists of keys that change neither a setting nor the memory and speed of a step, with white space between them. A key of a part
    /// has the part's name and a dot before it.
    pub silent: &'static [&'static str],
    /// Lists of keys that change the training.
    pub told: &'static [&'static [ToldKey]],
}

/// A key that changes the training and that no recipe has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToldKey {
    key: &'static str,
    /// What the tool does by it, as the end of a sentence.
    pub does: &'static str,
    /// Whether memory or speed of a step change by it.
    pub costs: bool,
    /// Values by which nothing changes; where there are none, a value that says nothing.
    usual: &'static [&'static str],
}

/// Class of a key that a tool knows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyClass {
    /// Key without effect on setting, memory and speed.
    Silent,
    /// Key that changes the training.
    Told(&'static ToldKey),
}

/// A key that changes what is learnt.
pub(crate) const fn learnt(key: &'static str, does: &'static str) -> ToldKey {
    ToldKey {
        key,
        does,
        costs: false,
        usual: &[],
    }
}

/// A key that changes memory or speed of a step.
pub(crate) const fn costly(key: &'static str, does: &'static str) -> ToldKey {
    ToldKey {
        costs: true,
        ..learnt(key, does)
    }
}

impl ToldKey {
    /// The key, by which nothing changes with one of these values.
    pub(crate) const fn unless(self, usual: &'static [&'static str]) -> Self {
        Self { usual, ..self }
    }

    /// Whether nothing changes by a value.
    pub(crate) fn is_usual(&self, value: &Value) -> bool {
        if self.usual.is_empty() {
            return is_nothing(value);
        }
        let text = written(value);
        let number: Option<f64> = text.trim().parse().ok();
        let is_it =
            |usual: &&str| text.eq_ignore_ascii_case(usual) || number.is_some() && usual.parse::<f64>().ok() == number;
        self.usual.iter().any(is_it)
    }
}

impl KnownKeys {
    /// Class of a key; `None` of one that the tool does not know.
    pub(crate) fn class_of(&self, key: &str) -> Option<KeyClass> {
        let mut told = self.told.iter().flat_map(|rows| rows.iter());
        if let Some(row) = told.find(|row| row.key == key) {
            return Some(KeyClass::Told(row));
        }
        let mut silent = self.silent.iter().flat_map(|list| list.split_whitespace());
        silent.any(|known| known == key).then_some(KeyClass::Silent)
    }
}

/// Whether a value says nothing.
pub(crate) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => ["", "none", "null", "false"].contains(&text.to_lowercase().as_str()),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// A value as text, without quotes around a text.
pub(crate) fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a value says nothing, or 0.
pub(crate) fn is_nothing(value: &Value) -> bool {
    let is_zero = match value {
        Value::String(text) => text.trim().parse::<f64>() == Ok(0.0),
        other => other.as_f64() == Some(0.0),
    };
    is_off(value) || is_zero
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::Tool;

    #[test]
    fn each_key_stands_in_one_list_and_none_of_those_that_are_taken_over() {
        for tool in Tool::ALL {
            let known = tool.known_keys();
            let mut seen = BTreeSet::new();
            let told = known.told.iter().flat_map(|rows| rows.iter().map(|row| row.key));
            let silent = known.silent.iter().flat_map(|list| list.split_whitespace());
            for key in silent.chain(told) {
                assert!(seen.insert(key), "{tool:?}: `{key}` stands twice");
            }
            let taken = tool.keys().settings.iter().map(|(_, key)| *key);
            let both: Vec<&str> = taken.filter(|key| seen.contains(key)).collect();
            assert!(both.is_empty(), "{tool:?}: {both:?}");
            assert!(!known.version.is_empty() && seen.len() > 10, "{tool:?}");
        }
    }

    #[test]
    fn usual_values_are_those_that_say_nothing_or_those_of_the_row() {
        let row = learnt("noise", "noise is added");
        for value in [
            json!(null),
            json!(0),
            json!(0.0),
            json!("0"),
            json!("0.0"),
            json!(false),
            json!("none"),
            json!([]),
            json!(""),
        ] {
            assert!(row.is_usual(&value), "{value}");
        }
        assert!(!row.is_usual(&json!(5)) && !row.is_usual(&json!("mean")));
        let row = row.unless(&["true", "0.001"]);
        for value in [json!(true), json!("True"), json!(0.001), json!("1e-3")] {
            assert!(row.is_usual(&value), "{value}");
        }
        assert!(!row.is_usual(&json!(false)) && !row.is_usual(&json!(0)));
    }
}
