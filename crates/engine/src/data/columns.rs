//! The columns of one row, with the user's renaming and typed access.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::readers::kind_of;
use super::{DataError, RowLocation};

/// One row's columns.
pub(super) struct Columns<'a> {
    location: &'a RowLocation,
    /// Name that the format knows to the name in the file.
    renames: &'a BTreeMap<String, String>,
    values: Map<String, Value>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(
        location: &'a RowLocation,
        renames: &'a BTreeMap<String, String>,
        values: Map<String, Value>,
    ) -> Self {
        Self {
            location,
            renames,
            values,
        }
    }

    /// Columns that hold something and were not taken.
    pub(super) fn unread(&self) -> impl Iterator<Item = &String> {
        let held = self.values.iter().filter(|(_, value)| !is_nothing(value));
        held.map(|(name, _)| name)
    }

    /// Takes whether the row says that its answer is bad, as data of preferences do (`label: false`).
    pub(super) fn is_bad(&mut self) -> bool {
        let is_flag = matches!(self.peek("label"), Some(Value::Bool(_)));
        is_flag && self.take("label") == Some(Value::Bool(false))
    }

    /// Refuses pictures, sounds and films, which are no text.
    pub(super) fn refuse_media(&self) -> Result<(), DataError> {
        const MEDIA: [&str; 8] = [
            "image",
            "images",
            "video",
            "videos",
            "audio",
            "audios",
            "pixel_values",
            "sounds",
        ];
        let holds = |key: &&&str| self.peek(key).is_some_and(|value| !is_nothing(value));
        match MEDIA.iter().find(holds) {
            None => Ok(()),
            Some(key) => Err(DataError::Media {
                location: self.location.clone(),
                column: self.name(key).to_owned(),
            }),
        }
    }

    fn peek(&self, key: &str) -> Option<&Value> {
        self.values.get(self.name(key))
    }

    /// Whether the row has the column, be it null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(self.name(key))
    }

    /// The names of all columns in the file.
    pub(super) fn names(&self) -> Vec<String> {
        self.values.keys().cloned().collect()
    }

    /// Takes a column's value and leaves null; `None` where it is absent or null.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        let name = self.renames.get(key).map_or(key, String::as_str);
        self.values
            .get_mut(name)
            .map(Value::take)
            .filter(|value| !value.is_null())
    }

    /// Takes a column that must be there and hold something; `expected` says what.
    pub(super) fn required(&mut self, key: &'static str, expected: &'static str) -> Result<Value, DataError> {
        let is_there = self.has(key);
        self.take(key).ok_or_else(|| {
            if is_there {
                self.wrong_type(key, expected, "null")
            } else {
                self.missing(key)
            }
        })
    }

    /// Takes a text that must be there. Numbers and truth values count as text.
    pub(super) fn text(&mut self, key: &'static str) -> Result<String, DataError> {
        let value = self.required(key, "text")?;
        self.as_text(key, value)
    }

    /// Takes a text; empty where it is absent or null.
    pub(super) fn optional_text(&mut self, key: &'static str) -> Result<String, DataError> {
        self.take(key)
            .map_or(Ok(String::new()), |value| self.as_text(key, value))
    }

    /// Takes a list that must be there. CSV files have it as JSON text.
    pub(super) fn list(&mut self, key: &'static str) -> Result<Vec<Value>, DataError> {
        let value = self.required(key, "a list")?;
        self.as_list(key, value)
    }

    /// Takes a list, if it is there.
    pub(super) fn optional_list(&mut self, key: &'static str) -> Result<Option<Vec<Value>>, DataError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(value) => self.as_list(key, value).map(Some),
        }
    }

    /// Takes a list of whole numbers, if it is there.
    pub(super) fn optional_integers(&mut self, key: &'static str) -> Result<Option<Vec<i64>>, DataError> {
        let Some(items) = self.optional_list(key)? else {
            return Ok(None);
        };
        let integer = |item: Value| {
            item.as_i64()
                .ok_or_else(|| self.wrong_type(key, "a list of whole numbers", kind_of(&item)))
        };
        items.into_iter().map(integer).collect::<Result<_, _>>().map(Some)
    }

    /// The error for a column of the wrong type.
    pub(super) fn wrong_type(&self, key: &str, expected: &'static str, found: &'static str) -> DataError {
        DataError::WrongType {
            location: self.location.clone(),
            column: self.name(key).to_owned(),
            expected,
            found,
        }
    }

    /// The error for a column that is not there.
    pub(super) fn missing(&self, key: &'static str) -> DataError {
        DataError::MissingColumn {
            location: self.location.clone(),
            column: self.name(key).to_owned(),
            key,
            found: self.names(),
        }
    }

    /// The name in the file.
    pub(super) fn name<'b>(&'b self, key: &'b str) -> &'b str {
        self.renames.get(key).map_or(key, String::as_str)
    }

    fn as_text(&self, key: &str, value: Value) -> Result<String, DataError> {
        match value {
            Value::String(text) => Ok(text),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(flag) => Ok(flag.to_string()),
            other => Err(self.wrong_type(key, "text", kind_of(&other))),
        }
    }

    fn as_list(&self, key: &str, value: Value) -> Result<Vec<Value>, DataError> {
        match value {
            Value::Array(items) => Ok(items),
            Value::String(text) => match serde_json::from_str(&text) {
                Ok(Value::Array(items)) => Ok(items),
                _ => Err(self.wrong_type(key, "a list", "text that is not a JSON list")),
            },
            other => Err(self.wrong_type(key, "a list", kind_of(&other))),
        }
    }
}

/// Whether a value says nothing: null, an empty list or an empty text.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
