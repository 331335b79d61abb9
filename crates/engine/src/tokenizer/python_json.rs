//! Python's `json.dumps`, which chat templates see as the filter `tojson`.
//!
//! The template engine's own filter escapes `<`, `>`, `&` and `'` for HTML; templates are written for transformers,
//! whose filter does not.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// How `json.dumps` is asked to write.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Spaces per level; `None` writes one line.
    pub indent: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

/// Writes `value` as JSON.
pub(super) fn dumps(value: &Value, layout: &Layout) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, layout, 0)?;
    Ok(out)
}

/// Deeper nesting than any real value has; a cyclic one cannot be made.
const DEEPEST: usize = 128;

fn write_value(out: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(bad("value is nested too deeply for tojson"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), layout.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_container(out, ('[', ']'), &items, layout, depth, |out, item| {
                write_value(out, item, layout, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if layout.sort_keys {
                keys.sort();
            }
            write_container(out, ('{', '}'), &keys, layout, depth, |out, key| {
                write_string(out, &key.to_string(), layout.ensure_ascii);
                out.push_str(&layout.key_separator);
                write_value(out, &value.get_item(key)?, layout, depth + 1)
            })?;
        }
        other => return Err(bad(format!("{other} is not JSON serializable"))),
    }
    Ok(())
}

fn write_container(
    out: &mut String,
    (open, close): (char, char),
    items: &[Value],
    layout: &Layout,
    depth: usize,
    mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = layout.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&layout.item_separator);
        }
        new_line(out, depth + 1);
        write(out, item)?;
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return Ok(());
    }
    let number = f64::try_from(value.clone())?;
    out.push_str(&python_float(number));
    Ok(())
}

/// Python's `repr` of a float, with JSON's names of the non-finite ones.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if number != 0.0 && !(1e-4..1e16).contains(&number.abs()) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, power) = match exponent.strip_prefix('-') {
            Some(power) => ('-', power),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{power:0>2}");
    }
    format!("{number:?}")
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn bad(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(indent: Option<usize>) -> Layout {
        Layout {
            indent,
            item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
            ensure_ascii: false,
        }
    }

    #[test]
    fn one_line_is_spaced_and_not_escaped_for_html() {
        let value = Value::from_pairs([
            ("b", Value::from("<é'&\n\u{1}>")),
            (
                "a",
                Value::from(vec![Value::from(1), Value::from(1.0), Value::from(())]),
            ),
        ]);
        let expected = "{\"b\": \"<é'&\\n\\u0001>\", \"a\": [1, 1.0, null]}";
        assert_eq!(dumps(&value, &layout(None)).unwrap(), expected);
    }

    #[test]
    fn indented_as_python_does() {
        let value = Value::from_pairs([("a", Value::from(vec![1, 2])), ("b", Value::from(Vec::<i32>::new()))]);
        let expected = "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}";
        assert_eq!(dumps(&value, &layout(Some(2))).unwrap(), expected);
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (2.5, "2.5"),
            (-0.0, "-0.0"),
        ];
        for (number, text) in cases {
            assert_eq!(python_float(number), text);
        }
    }
}
