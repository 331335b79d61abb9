//! Typed values from a tree: a serde deserializer whose errors know their key and place.

use std::fmt;
use std::ops::Range;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::tree::Entry;
use super::{Node, Value};

/// What was wrong while decoding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    UnknownKey { key: String, known: Vec<String> },
    MissingKey { key: String },
    WrongValue { found: String, expected: String },
    Other(String),
}

/// A fault, and where it is once the layers above it have said so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecodeError {
    pub fault: Fault,
    pub span: Option<Range<usize>>,
    /// Keys from the root to the fault.
    pub keys: Vec<String>,
}

impl DecodeError {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            span: None,
            keys: Vec::new(),
        }
    }

    fn at(mut self, span: &Range<usize>) -> Self {
        self.span.get_or_insert_with(|| span.clone());
        self
    }

    fn under(mut self, key: &str) -> Self {
        self.keys.insert(0, key.to_owned());
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            Fault::UnknownKey { key, .. } => write!(formatter, "unknown key `{key}`"),
            Fault::MissingKey { key } => write!(formatter, "key `{key}` is missing"),
            Fault::WrongValue { found, expected } => write!(formatter, "expected {expected}, found {found}"),
            Fault::Other(message) => message.fmt(formatter),
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Fault::Other(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Fault::WrongValue {
            found: plain_found(found),
            expected: plain_expected(&expected.to_string()),
        })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Fault::WrongValue {
            found: format!("`{variant}`"),
            expected: format!("one of {}", expected.join(", ")),
        })
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownKey {
            key: field.to_owned(),
            known: expected.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Fault::MissingKey { key: field.to_owned() })
    }
}

/// What stands in the file, in words that a person who knows no Rust understands.
fn plain_found(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Str(value) => format!("`{value}`"),
        Unexpected::Unit | Unexpected::Option => "nothing".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "keys and values".into(),
        other => other.to_string(),
    }
}

/// serde's names of Rust types, in words that a person who knows no Rust understands.
fn plain_expected(expected: &str) -> String {
    match expected {
        "u64" | "usize" | "u32" => "a whole number, 0 or more",
        "a nonzero u64" | "a nonzero usize" | "a nonzero u32" => "a whole number, 1 or more",
        "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "path string" => "text",
        "a sequence" => "a list",
        "a map" => "keys and values",
        "unit" => "the name alone",
        other if other.starts_with("struct ") => "keys and values",
        other => other,
    }
    .to_owned()
}

/// A node being decoded. `text` is the whole file, where a plain number can be read back as the text it was.
#[derive(Clone, Copy)]
pub(super) struct Decoder<'a> {
    pub node: &'a Node,
    pub text: &'a str,
}

impl<'a> Decoder<'a> {
    fn child(&self, node: &'a Node) -> Self {
        Self { node, text: self.text }
    }

    fn located<T>(&self, result: Result<T, DecodeError>) -> Result<T, DecodeError> {
        result.map_err(|error| error.at(&self.node.span))
    }
}

impl<'de> de::Deserializer<'de> for Decoder<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(nodes) => visitor.visit_seq(Elements {
                decoder: self,
                nodes,
                next: 0,
            }),
            Value::Map(entries) => visitor.visit_map(Entries {
                decoder: self,
                entries,
                next: 0,
            }),
        };
        self.located(result)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// A name that looks like a number or a truth value is still a name.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => match self.text.get(self.node.written.clone()) {
                Some(raw) if !raw.is_empty() => self.located(visitor.visit_borrowed_str(raw)),
                _ => self.deserialize_any(visitor),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    /// A struct is never written as a list, though serde would take one.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::List(_) => self.located(Err(de::Error::invalid_type(Unexpected::Seq, &"a map"))),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let result = match &self.node.value {
            Value::Text(name) => visitor.visit_enum(name.as_str().into_deserializer()),
            Value::Map(entries) if entries.len() == 1 => visitor.visit_enum(MapAccessDeserializer::new(Entries {
                decoder: self,
                entries,
                next: 0,
            })),
            Value::Map(_) => Err(DecodeError::new(Fault::WrongValue {
                found: "several keys".into(),
                expected: format!("one key of {}", variants.join(", ")),
            })),
            // `none` and the like are quoted text to the reader, but YAML may read `null`, `1` or `true`.
            _ => Err(DecodeError::new(Fault::WrongValue {
                found: format!("`{}`", self.text.get(self.node.written.clone()).unwrap_or_default()),
                expected: format!("one of {}", variants.join(", ")),
            })),
        };
        self.located(result)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Elements<'de> {
    decoder: Decoder<'de>,
    nodes: &'de [Node],
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Elements<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some(node) = self.nodes.get(self.next) else {
            return Ok(None);
        };
        let index = self.next.to_string();
        self.next += 1;
        let decoder = self.decoder.child(node);
        decoder
            .located(seed.deserialize(decoder))
            .map(Some)
            .map_err(|error| error.under(&index))
    }
}

struct Entries<'de> {
    decoder: Decoder<'de>,
    entries: &'de [Entry],
    next: usize,
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some(entry) = self.entries.get(self.next) else {
            return Ok(None);
        };
        let key: StrDeserializer<'_, DecodeError> = entry.key.as_str().into_deserializer();
        seed.deserialize(key)
            .map(Some)
            .map_err(|error| error.at(&entry.key_span).under(&entry.key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let entry = &self.entries[self.next];
        self.next += 1;
        let decoder = self.decoder.child(&entry.value);
        let span = if entry.value.span.is_empty() {
            &entry.key_span
        } else {
            &entry.value.span
        };
        seed.deserialize(decoder)
            .map_err(|error| error.at(span).under(&entry.key))
    }
}
