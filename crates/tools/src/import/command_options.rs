//! Options of a command, as transformers' parser has them.

use serde_json::{Map, Value};

/// The name of an option, with the value that stands in the same word.
pub(super) fn name_of(word: &str) -> Option<(&str, Option<&str>)> {
    let option = word.strip_prefix("--")?;
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let is_name = name.starts_with(|first: char| first.is_alphabetic() || first == '_');
    is_name.then_some((name, value))
}

/// Options by name: what stands in the same word, the words up to the next option with commas between them, or true.
pub(super) fn options_of(words: &[String]) -> Map<String, Value> {
    let mut all = Map::new();
    for (at, word) in words.iter().enumerate() {
        let Some((name, own)) = name_of(word) else { continue };
        let value = match own {
            Some(own) => value_of(own),
            None => {
                let values = words[at + 1..].iter().take_while(|word| name_of(word).is_none());
                let values: Vec<&str> = values.map(String::as_str).collect();
                match values.as_slice() {
                    [] => Value::Bool(true),
                    [one] => value_of(one),
                    many => {
                        let bare = many.iter().map(|word| word.trim_matches(['[', ']', ',']));
                        Value::String(bare.collect::<Vec<_>>().join(","))
                    }
                }
            }
        };
        let (key, value) = key_of(name, value);
        all.insert(key, value);
    }
    all
}

/// The key of an option with its value, as transformers' parser has them: dashes are underscores, and `--no_packing` alone is
/// `packing: false`.
fn key_of(name: &str, value: Value) -> (String, Value) {
    let name = name.replace('-', "_");
    let is_bare = value == Value::Bool(true);
    // That one is a key of its own.
    let flag = name.strip_prefix("no_").filter(|flag| is_bare && *flag != "cuda");
    match flag.map(str::to_owned) {
        Some(flag) => (flag, Value::Bool(false)),
        None => (name, value),
    }
}

/// A word as a value: a map or a list where it is one of JSON, else the text.
fn value_of(word: &str) -> Value {
    let parsed = word.starts_with(['{', '[']).then(|| serde_json::from_str(word));
    match parsed {
        Some(Ok(value)) => value,
        _ => Value::String(word.trim_matches(['[', ']']).to_owned()),
    }
}
