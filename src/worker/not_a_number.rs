//! Numbers that are none, as Python prints them into JSON (`NaN`, `Infinity`), which no other JSON reader takes.

use std::sync::LazyLock;

use regex::Regex;

static NO_NUMBER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"([:,\[]\s*)(-?Infinity|NaN|nan|-?inf)\b").ok());

/// A line with numbers that are none as texts.
pub(super) fn quoted_no_numbers(line: &str) -> String {
    match NO_NUMBER.as_ref() {
        Some(pattern) => pattern.replace_all(line, "$1\"$2\"").into_owned(),
        None => line.to_owned(),
    }
}

/// Whether a text stands for a number that is none.
pub(super) fn is_no_number(text: &str) -> bool {
    matches!(text, "NaN" | "nan" | "Infinity" | "-Infinity" | "inf" | "-inf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_read_as_texts() {
        let line = r#"{"a": NaN, "b":-Infinity, "c": [inf,1.5], "d": "fine"}"#;
        let quoted = quoted_no_numbers(line);
        assert_eq!(
            quoted,
            r#"{"a": "NaN", "b":"-Infinity", "c": ["inf",1.5], "d": "fine"}"#
        );
        assert!(["NaN", "-Infinity", "inf"].into_iter().all(is_no_number) && !is_no_number("fine"));
    }
}
