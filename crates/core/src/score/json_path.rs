//! A path to one value of a JSON document: the singular queries of RFC 9535, that is, names and indices behind `$`.
//!
//! `$.answer`, `$['final answer'].value`, `$.steps[-1]`. What selects several values (`..`, `*`, slices, filters) is refused: of an
//! answer there is one.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A path to one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Name(String),
    /// Index of an element, from the end where it is negative.
    Index(i64),
}

/// Why a text is no such path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonPathError {
    #[error("a JSON path begins with `$`, as in $.answer")]
    Root,
    #[error("`{rest}` leads to no one value; write names and indices, as in $.steps[-1].result")]
    Segment { rest: String },
}

impl JsonPath {
    /// The value that it leads to.
    pub fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.segments.iter().try_fold(document, |value, segment| match segment {
            Segment::Name(name) => value.as_object()?.get(name),
            Segment::Index(index) => {
                let values = value.as_array()?;
                let from_end = usize::try_from(index.unsigned_abs()).ok()?;
                let index = match *index < 0 {
                    true => values.len().checked_sub(from_end)?,
                    false => from_end,
                };
                values.get(index)
            }
        })
    }
}

impl FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<Self, JsonPathError> {
        let mut rest = text.strip_prefix('$').ok_or(JsonPathError::Root)?;
        let mut segments = Vec::new();
        while !rest.is_empty() {
            let (segment, behind) = segment(rest).ok_or_else(|| JsonPathError::Segment { rest: rest.to_owned() })?;
            segments.push(segment);
            rest = behind;
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
        })
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The first segment of a text, and what is behind it.
fn segment(text: &str) -> Option<(Segment, &str)> {
    if let Some(rest) = text.strip_prefix('.') {
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let is_name = name.chars().next().is_some_and(|first| !first.is_numeric());
        return is_name.then(|| (Segment::Name(name.to_owned()), behind));
    }
    let inside = text.strip_prefix('[')?;
    for quote in ['\'', '"'] {
        if let Some(quoted) = inside.strip_prefix(quote) {
            let (name, behind) = quoted_name(quoted, quote)?;
            return Some((Segment::Name(name), behind.strip_prefix(']')?));
        }
    }
    let (index, behind) = inside.split_once(']')?;
    Some((Segment::Index(index.trim().parse().ok()?), behind))
}

/// A name up to its closing quote, and what is behind that.
fn quoted_name(text: &str, quote: char) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.push(letters.next()?.1),
            letter if letter == quote => return Some((name, &text[at + letter.len_utf8()..])),
            letter => name.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> Option<String> {
        let document = serde_json::json!({
            "answer": 42, "final answer": {"value": "x"}, "steps": [{"result": 1}, {"result": 2}], "it's": true,
        });
        let path: JsonPath = path.parse().unwrap();
        path.find(&document).map(Value::to_string)
    }

    #[test]
    fn names_and_indices_lead_to_one_value() {
        assert_eq!(found("$.answer").unwrap(), "42");
        assert_eq!(found("$['final answer'].value").unwrap(), "\"x\"");
        assert_eq!(found("$.steps[-1].result").unwrap(), "2");
        assert_eq!(found("$.steps[0][\"result\"]").unwrap(), "1");
        assert_eq!(found(r"$['it\'s']").unwrap(), "true");
        assert_eq!(found("$.steps[2]"), None);
        assert_eq!(found("$.steps[-3]"), None);
        assert_eq!(found("$.answer.more"), None);
    }

    #[test]
    fn what_leads_to_several_values_or_nowhere_is_refused() {
        for wrong in [
            "answer",
            "$.",
            "$..answer",
            "$.*",
            "$.steps[*]",
            "$.steps[0:1]",
            "$.steps[",
            "$['a",
            "$.1a",
            "$ ",
        ] {
            assert!(wrong.parse::<JsonPath>().is_err(), "{wrong}");
        }
    }
}
