//! Meaning of an object that is alone in a JSON file: a row, or a wrapper around the list of rows.

use serde_json::{Map, Value};

/// Columns of rows that may hold lists, whatever the format. One that does tells a row.
const COLUMNS_OF_LISTS: [&str; 7] = [
    "messages",
    "conversations",
    "prompt",
    "completion",
    "tools",
    "input_ids",
    "labels",
];
/// Columns that tell a row where no list of objects is beside them.
const COLUMNS_OF_TEXT: [&str; 4] = ["text", "instruction", "prompt", "completion"];
/// Keys that hold the rows where several lists could.
const KEYS_OF_ROWS: [&str; 2] = ["train", "data"];

/// An object that is alone in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoneObject {
    Row,
    /// The rows are under this key.
    Wrapper(String),
    /// Each of these keys could hold the rows.
    Unclear(Vec<String>),
    /// Object in which nothing tells.
    Other,
}

impl LoneObject {
    pub(super) fn of(object: &Map<String, Value>) -> Self {
        let holds = |keys: &[&str], is_it: fn(&Value) -> bool| {
            let mut values = keys.iter().filter_map(|key| object.get(*key));
            values.any(is_it)
        };
        if holds(&COLUMNS_OF_LISTS, Value::is_array) {
            return Self::Row;
        }
        let tables = object.iter().filter(|(_, value)| is_table(value));
        let tables: Vec<&String> = tables.map(|(key, _)| key).collect();
        let named = tables.iter().find(|key| KEYS_OF_ROWS.contains(&key.as_str()));
        match (tables.as_slice(), named) {
            ([only], _) => Self::Wrapper((*only).clone()),
            ([_, ..], Some(key)) => Self::Wrapper((*key).clone()),
            ([_, ..], None) => Self::Unclear(tables.iter().map(|key| (*key).clone()).collect()),
            ([], _) if holds(&COLUMNS_OF_TEXT, Value::is_string) => Self::Row,
            ([], _) => Self::Other,
        }
    }
}

/// Whether a value is a list of objects, and of one at least.
fn is_table(value: &Value) -> bool {
    matches!(value, Value::Array(rows) if !rows.is_empty() && rows.iter().all(Value::is_object))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_of_lists_tell_a_row_and_other_lists_of_objects_a_wrapper() {
        let wrapper = |key: &str| LoneObject::Wrapper(key.to_owned());
        let unclear = LoneObject::Unclear(vec!["a".to_owned(), "b".to_owned()]);
        for (object, expected) in [
            (json!({"messages": [{}], "tools": [{}]}), LoneObject::Row),
            (json!({"messages": [{}], "functions": [{}]}), LoneObject::Row),
            (json!({"conversations": [{}]}), LoneObject::Row),
            (json!({"input_ids": [1, 2]}), LoneObject::Row),
            (json!({"text": "a", "tags": []}), LoneObject::Row),
            (json!({"text": "about these rows", "data": [{}]}), wrapper("data")),
            (json!({"version": 1, "rows": [{}]}), wrapper("rows")),
            (json!({"other": [{}], "train": [{}]}), wrapper("train")),
            (json!({"own": "a", "tags": []}), LoneObject::Other),
            (json!({"a": [{}], "b": [{}]}), unclear),
            (json!({"data": [1]}), LoneObject::Other),
            (json!({"a": 1}), LoneObject::Other),
        ] {
            let Value::Object(map) = &object else {
                panic!("an object")
            };
            assert_eq!(LoneObject::of(map), expected, "{object}");
        }
    }
}
