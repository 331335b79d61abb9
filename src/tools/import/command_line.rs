//! Settings in a command line or a shell script: its `--key value` pairs.

use serde_json::{Map, Value};

/// `--key value` pairs of a command line or a shell script; empty where the text has none.
pub(in crate::tools) fn arguments(text: &str) -> Map<String, Value> {
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").collect();
    let mut all = Map::new();
    for (place, word) in words.iter().enumerate() {
        let Some(key) = word.strip_prefix("--").filter(|key| !key.is_empty()) else {
            continue;
        };
        if let Some((key, value)) = key.split_once('=') {
            all.insert(key.to_owned(), Value::String(unquoted(value)));
            continue;
        }
        let rest = words.get(place + 1..).unwrap_or_default();
        let values: Vec<String> = rest
            .iter()
            .take_while(|word| !word.starts_with("--"))
            .map(|word| unquoted(word))
            .collect();
        let value = match values.is_empty() {
            true => Value::Bool(true),
            false => Value::String(values.join(",")),
        };
        all.insert(key.to_owned(), value);
    }
    all
}

fn unquoted(word: &str) -> String {
    word.trim_matches(['"', '\'', '[', ']']).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pairs_of_a_command_line_are_keys_with_texts() {
        let read = arguments("trl sft --a 1 --b=x \\\n --c p q --d");
        assert_eq!(Value::Object(read), json!({"a": "1", "b": "x", "c": "p,q", "d": true}));
        for odd in ["=", "--", "--=", "a='", "--é=1"] {
            arguments(odd);
        }
    }
}
