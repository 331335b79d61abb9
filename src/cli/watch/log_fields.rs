//! Numbers that a training logs in a line: a dictionary as Python prints it, an object of JSON, or torchtune's `key:value` words.

use std::collections::BTreeMap;

/// Longest line that is taken apart.
const LONGEST: usize = 8 << 10;

/// Numbers of a line by their names.
pub(super) type LogFields = BTreeMap<String, f64>;

/// The numbers of a line that logs some; `None` of any other line.
pub(super) fn read(line: &str) -> Option<LogFields> {
    if line.len() > LONGEST {
        return None;
    }
    let fields = match line.find('{') {
        Some(start) => dictionary(&line[start..])?,
        None => words(line.trim_start().strip_prefix("Step ")?)?,
    };
    (!fields.is_empty()).then_some(fields)
}

/// The numbers of a flat dictionary of Python or JSON: `{'loss': 2.1, 'eval': "0.5", "other": null}`.
fn dictionary(text: &str) -> Option<LogFields> {
    let mut fields = LogFields::new();
    let mut rest = text.strip_prefix('{')?.trim_start();
    while let Some((name, behind)) = quoted(rest) {
        rest = behind.trim_start().strip_prefix(':')?.trim_start();
        let (value, behind) = value(rest)?;
        if let Some(number) = number(value) {
            fields.insert(name.to_owned(), number);
        }
        rest = behind.trim_start();
        match rest.strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None => break,
        }
    }
    rest.starts_with('}').then_some(fields)
}

/// A quoted text, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// A value in words, and what follows: a quoted text, or all up to the comma or the bracket behind it.
fn value(text: &str) -> Option<(&str, &str)> {
    if let Some(found) = quoted(text) {
        return Some(found);
    }
    let mut depth = 0usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => return Some((&text[..at], &text[at..])),
            _ => {}
        }
    }
    None
}

/// A number as Python prints it.
fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_end_matches('%');
    match text {
        "nan" | "NaN" => Some(f64::NAN),
        "inf" | "Infinity" => Some(f64::INFINITY),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.' | '+')) => text.parse().ok(),
        _ => None,
    }
}

/// torchtune's: `12 | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:410.2`.
fn words(text: &str) -> Option<LogFields> {
    let (step, rest) = text.split_once('|')?;
    let mut fields = LogFields::from([("step".to_owned(), step.trim().parse().ok()?)]);
    for word in rest.split_whitespace() {
        if let Some((name, value)) = word.split_once(':')
            && let Some(value) = number(value)
        {
            fields.insert(name.to_owned(), value);
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(line: &str) -> Vec<(String, f64)> {
        read(line).into_iter().flatten().collect()
    }

    #[test]
    fn dictionaries_of_python_and_json_are_read() {
        let trainer = fields("{'loss': 2.31, 'grad_norm': 1.5e-1, 'learning_rate': 2e-05, 'epoch': 0.12}");
        let loss = trainer.iter().find(|(name, _)| name == "loss");
        assert_eq!((trainer.len(), loss.map(|(_, value)| *value)), (4, Some(2.31)));
        let texts = fields("{'loss': '2.31', 'epoch': '0.1'}");
        assert_eq!(texts, [("epoch".to_owned(), 0.1), ("loss".to_owned(), 2.31)]);
        let json =
            fields(r#"{"current_steps": 5, "total_steps": 50, "loss": 1.2, "elapsed_time": "0:00:05", "x": null}"#);
        assert_eq!(json.len(), 3, "{json:?}");
        let nested = fields("INFO {'a': [1, 2], 'b': {'c': 3}, 'eval_loss': nan}");
        assert_eq!(nested.len(), 1);
        assert!(nested[0].1.is_nan());
        let behind = fields("  3%|▎ | 3/9 [00:12<06:23]{'loss': 1.0}");
        assert_eq!(behind, [("loss".to_owned(), 1.0)]);
    }

    #[test]
    fn torchtunes_words_are_read() {
        let found = fields("Step 12 | loss:1.91 lr:2e-05 tokens_per_second_per_gpu:410.5 name:x");
        assert_eq!(found.len(), 4);
        assert!(found.contains(&("step".to_owned(), 12.0)));
        assert!(found.contains(&("tokens_per_second_per_gpu".to_owned(), 410.5)));
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "{",
            "{}",
            "{'a'",
            "{'a': ",
            "{'loss': 1",
            "Step by step",
            "Step 1 of 2",
            "{x: 1}",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(line in "[-{}'\":,a1.é|\\[ Step]{0,40}") {
            let _ = read(&line);
        }
    }
}
