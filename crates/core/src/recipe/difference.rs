//! First key in which settings differ, as messages name it.

use serde_json::{Map, Value};

/// Key in which two values differ, with what each of them has there as JSON: `absent` where that is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Names from the outside in, with points between them.
    pub key: String,
    pub first: String,
    pub second: String,
}

impl Difference {
    /// The first difference of two values that stand under `key`, which is empty for whole recipes; `None` where they are alike.
    pub fn of(key: &str, first: &Value, second: &Value) -> Option<Self> {
        let (Value::Object(one), Value::Object(other)) = (first, second) else {
            return (first != second).then(|| Self {
                key: key.to_owned(),
                first: shown(first),
                second: shown(second),
            });
        };
        let added = other.keys().filter(|name| !one.contains_key(*name));
        one.keys().chain(added).find_map(|name| {
            let key = match key {
                "" => name.clone(),
                key => format!("{key}.{name}"),
            };
            let value = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or(Value::Null);
            Self::of(&key, &value(one), &value(other))
        })
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "absent".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_key_that_differs_is_named_from_the_outside_in() {
        let of = |key, first, second| {
            Difference::of(key, &first, &second).map(|found| [found.key, found.first, found.second].join(" "))
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(of("", json!({"a": 1, "b": [2]}), json!({"a": 1, "b": [2]})), None);
        assert_eq!(
            of("", json!({"a": {"b": 1}}), json!({"a": {"b": "x"}})),
            told("a.b 1 \"x\"")
        );
        assert_eq!(of("data", json!({"a": 1}), json!({})), told("data.a 1 absent"));
        assert_eq!(of("data", json!({}), json!({"a": 1})), told("data.a absent 1"));
        assert_eq!(of("model", json!("one"), json!({})), told("model \"one\" {}"));
    }
}
