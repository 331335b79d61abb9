//! JSON as Python writes it: a number may be `NaN`, `Infinity` or `-Infinity`, for which JSON has no words.

use serde::de::DeserializeOwned;

/// Names of numbers that Python's `json` writes. The longest of those that share an ending stands first.
const NAMES: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Reads a text. A number that JSON has no word for is null, which says nothing.
///
/// # Errors
/// A text that is no JSON even so, or of another form.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| match with_nulls(text) {
        Some(text) => serde_json::from_str(&text),
        None => Err(error),
    })
}

/// Reads bytes as [`from_str`] does.
///
/// # Errors
/// Errors of [`from_str`]; bytes that are no text.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    }
}

/// The text with null in the place of each such number, outside of strings; `None` where there is none.
fn with_nulls(text: &str) -> Option<String> {
    let mut written = String::with_capacity(text.len());
    let (mut is_string, mut is_escaped, mut read) = (false, false, 0);
    for (place, letter) in text.char_indices() {
        if place < read {
            continue;
        }
        let rest = &text[place..];
        if let Some(name) = NAMES.iter().find(|name| !is_string && rest.starts_with(**name)) {
            written.push_str("null");
            read = place + name.len();
            continue;
        }
        (is_string, is_escaped) = match letter {
            '"' if !is_escaped => (!is_string, false),
            '\\' => (is_string, is_string && !is_escaped),
            _ => (is_string, false),
        };
        written.push(letter);
    }
    (read > 0).then_some(written)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_without_a_word_are_null_and_texts_stay() {
        let text = r#"{"limit": [0.0, Infinity], "low": -Infinity, "none": NaN, "name": "NaN \" Infinity", "n": -1}"#;
        let expected = json!({"limit": [0.0, null], "low": null, "none": null, "name": "NaN \" Infinity", "n": -1});
        assert_eq!(from_str::<Value>(text).unwrap(), expected);
        assert_eq!(from_slice::<Value>(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for text in ["{", "{\"a\": infinity}", "{\"a\": Infinit}", "\"\\", "Inf"] {
            assert!(from_str::<Value>(text).is_err(), "{text}");
        }
        assert!(from_slice::<Value>(b"\xff").is_err());
    }
}
