//! Values that are written out: Python's numbers and texts.

use serde_json::{Number, Value};

/// A number; `None` of complex ones.
pub(super) fn number(text: &str) -> Option<Value> {
    let plain = text.replace('_', "").to_lowercase();
    let with_base = |prefix: &str, base: u32| {
        let digits = plain.strip_prefix(prefix)?;
        i64::from_str_radix(digits.trim_end_matches('l'), base).ok()
    };
    let whole = with_base("0x", 16)
        .or_else(|| with_base("0o", 8))
        .or_else(|| with_base("0b", 2))
        .or_else(|| plain.trim_end_matches('l').parse().ok());
    match whole {
        Some(whole) => Some(Value::from(whole)),
        // Rust has words for numbers, too.
        None if plain.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
            Number::from_f64(plain.parse().ok()?).map(Value::Number)
        }
        None => None,
    }
}

/// A text without the marks that stand for other letters.
pub(super) fn unescaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            all.push(letter);
            continue;
        }
        let Some(mark) = letters.next() else {
            all.push(letter);
            break;
        };
        let by_number = |digits: usize| {
            let digits = letters.as_str().get(..digits)?;
            char::from_u32(u32::from_str_radix(digits, 16).ok()?)
        };
        let (found, digits) = match mark {
            'n' => (Some('\n'), 0),
            't' => (Some('\t'), 0),
            'r' => (Some('\r'), 0),
            '\\' | '\'' | '"' => (Some(mark), 0),
            'x' => (by_number(2), 2),
            'u' => (by_number(4), 4),
            'U' => (by_number(8), 8),
            // A line that goes on.
            '\n' => continue,
            _ => (None, 0),
        };
        match found {
            Some(found) => {
                all.push(found);
                letters.by_ref().take(digits).for_each(drop);
            }
            None => all.extend([letter, mark]),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_read_in_every_form() {
        for (text, expected) in [
            ("3", json!(3)),
            ("3_000", json!(3000)),
            ("0XfF", json!(255)),
            ("0b11", json!(3)),
            ("1.", json!(1.0)),
            (".5", json!(0.5)),
            ("2E-4", json!(2e-4)),
            ("12L", json!(12)),
        ] {
            assert_eq!(number(text), Some(expected), "{text}");
        }
        for text in ["3j", "1e999", "inf", "nan", "", "0x"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn marks_in_texts_stand_for_other_letters() {
        for (text, expected) in [
            (r"a\nb", "a\nb"),
            (r"\x41\u00e9\U0001F600", "Aé😀"),
            (r"\\n", "\\n"),
            (r"\d\x4", "\\d\\x4"),
            ("a\\", "a\\"),
            ("a\\\nb", "ab"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }
}
