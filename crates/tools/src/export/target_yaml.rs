//! YAML that Python's readers understand.
//!
//! PyYAML reads YAML 1.1: `2e-4` is text to it, and so are bare `yes` and `on` truth values. Numbers are therefore
//! written without exponents and doubtful words in quotes.

use serde_json::Value;

/// Lines of `key: value` in order.
#[derive(Default)]
pub(crate) struct TargetYaml {
    text: String,
}

impl TargetYaml {
    /// Adds a key.
    pub(crate) fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.text.push_str(&format!("{key}: {}\n", scalar(&value.into())));
    }

    /// Adds a key whose value is a list of maps, written as a block.
    pub(crate) fn block(&mut self, key: &str, items: &[Vec<(&str, Value)>]) {
        self.text.push_str(&format!("{key}:\n"));
        for item in items {
            for (index, (name, value)) in item.iter().enumerate() {
                let lead = if index == 0 { "  - " } else { "    " };
                self.text.push_str(&format!("{lead}{name}: {}\n", scalar(value)));
            }
        }
    }

    /// Adds a key whose value is a map, written as a block.
    pub(crate) fn map(&mut self, key: &str, entries: &[(&str, Value)]) {
        self.text.push_str(&format!("{key}:\n"));
        for (name, value) in entries {
            self.text.push_str(&format!("  {name}: {}\n", scalar(value)));
        }
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        self.text
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(value) => decimal(value),
            None => number.to_string(),
        },
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(scalar).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(name, value)| format!("{}: {}", scalar(&name.as_str().into()), scalar(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        // A JSON string is a YAML string.
        other => other.to_string(),
    }
}

/// A number without exponent and with a point.
fn decimal(value: f64) -> String {
    let text = format!("{value}");
    if text.contains('.') { text } else { text + ".0" }
}

/// Whether a text means itself without quotes in YAML 1.1 and 1.2.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 11] = [
        "null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf",
    ];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !WORDS.contains(&text.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_have_no_exponent_and_whole_ones_a_point() {
        assert_eq!(scalar(&2e-5.into()), "0.00002");
        assert_eq!(scalar(&1e-8.into()), "0.00000001");
        assert_eq!(scalar(&1.0.into()), "1.0");
        assert_eq!(scalar(&3.into()), "3");
    }

    #[test]
    fn doubtful_words_are_quoted() {
        let text = |text: &str| scalar(&text.into());
        assert_eq!(text("Qwen/Qwen2.5-0.5B"), "Qwen/Qwen2.5-0.5B");
        for doubtful in ["no", "1e5", "a: b", "# x", "", "it's", "ü", "-x"] {
            assert!(text(doubtful).starts_with('"'), "{doubtful}");
        }
    }
}
