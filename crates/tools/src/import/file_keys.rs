//! The keys of a settings file: typed readings, errors with file and key, and what was not read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::StackFileError;

/// A file's keys, each read at most as what it is.
pub(crate) struct Keys<'a> {
    path: &'a Path,
    values: &'a Map<String, Value>,
    /// Text in front of the keys in messages: `model.` of a part.
    prefix: &'static str,
    /// Places of the keys in a script, as messages have them.
    locations: Option<&'a BTreeMap<String, String>>,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(path: &'a Path, values: &'a Map<String, Value>) -> Self {
        Self {
            path,
            values,
            prefix: "",
            locations: None,
            read: RefCell::new(BTreeSet::new()),
        }
    }

    /// Adds the places that the keys have in a script.
    pub(crate) fn at(mut self, locations: &'a BTreeMap<String, String>) -> Self {
        self.locations = Some(locations);
        self
    }

    /// The keys of a part, such as `model` of torchtune.
    pub(crate) fn part(&self, key: &str, prefix: &'static str) -> Option<Keys<'a>> {
        self.mark(key);
        let values = self.values.get(key)?.as_object()?;
        Some(Keys {
            prefix,
            ..Keys::new(self.path, values)
        })
    }

    /// The maps of a list of them, such as `datasets`; one map counts as a list of one.
    pub(crate) fn items(&self, key: &str, prefix: &'static str) -> Vec<Keys<'a>> {
        let all = match self.value(key) {
            Some(Value::Array(all)) => all.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        let maps = all.iter().filter_map(Value::as_object);
        maps.map(|values| Keys {
            prefix,
            ..Keys::new(self.path, values)
        })
        .collect()
    }

    /// The value as it stands in the file.
    pub(crate) fn raw(&self, key: &str) -> Option<&'a Value> {
        self.value(key)
    }

    /// The value as it stands in the file, which stays one that nobody has read.
    pub(crate) fn seen(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key).filter(|value| !is_empty(value))
    }

    /// The file that the keys are of.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// A whole number from 1 on.
    ///
    /// # Errors
    /// A value that is no such number.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, StackFileError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::String(text) => text.trim().parse().ok(),
            other => other.as_u64(),
        };
        let number = number.filter(|number| *number > 0);
        number
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, "write a whole number, 1 or more"))
    }

    /// A yes or no.
    ///
    /// # Errors
    /// A value that is neither true nor false.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, StackFileError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let flag = match value {
            Value::Bool(flag) => Some(*flag),
            Value::Number(number) if number.as_u64() == Some(1) => Some(true),
            Value::Number(number) if number.as_u64() == Some(0) => Some(false),
            Value::String(text) => match text.to_lowercase().as_str() {
                "true" | "yes" | "1" | "auto" => Some(true),
                "false" | "no" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        };
        flag.map(Some)
            .ok_or_else(|| self.wrong(key, value, "write true or false"))
    }

    /// A value as text.
    ///
    /// # Errors
    /// A value that is a list or an object.
    pub(crate) fn text(&self, key: &str) -> Result<Option<String>, StackFileError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => Ok(Some(value.to_string())),
            Some(value) => Err(self.wrong(key, value, "write a text")),
        }
    }

    /// A number that may be 0.
    ///
    /// # Errors
    /// A value that is no number, or none that is finite.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, StackFileError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number: Option<f64> = match value {
            Value::String(text) => text.trim().parse().ok(),
            other => other.as_f64(),
        };
        let number = number.filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(key, value, "write a number"))
    }

    /// A bound above 0. A number of 0 or less bounds nothing, and neither does an infinite one.
    ///
    /// # Errors
    /// A value that is no number.
    pub(crate) fn bound(&self, key: &str) -> Result<Option<f64>, StackFileError> {
        let text = self.value(key).and_then(Value::as_str).unwrap_or_default();
        let number: Option<f64> = text.trim().parse().ok();
        match number.is_some_and(f64::is_infinite) {
            true => Ok(None),
            false => Ok(self.number(key)?.filter(|bound| *bound > 0.0)),
        }
    }

    /// A list of names: a list, or one text with commas.
    ///
    /// # Errors
    /// A value that is neither.
    pub(crate) fn names(&self, key: &str) -> Result<Option<Vec<String>>, StackFileError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let names: Option<Vec<String>> = match value {
            Value::String(text) => Some(text.split(',').map(|name| name.trim().to_owned()).collect()),
            Value::Array(all) => all.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        names
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, "write a list of names"))
    }

    /// An error about one key.
    pub(crate) fn wrong(&self, key: &str, value: &Value, instead: &'static str) -> StackFileError {
        let mut text = value.to_string();
        if text.len() > 120 {
            text = text.chars().take(120).collect::<String>() + "…";
        }
        StackFileError::Value {
            location: self.location(key),
            key: format!("{}{key}", self.prefix),
            value: text,
            instead,
        }
    }

    /// The place of a key, as far as it is known: the file with the line of a script, or the file alone.
    pub(crate) fn location(&self, key: &str) -> String {
        let location = self.locations.and_then(|all| all.get(key)).cloned();
        location.unwrap_or_else(|| self.path.display().to_string())
    }

    /// Whether a key stands there without a value, by which some tools turn off what they do where it is absent.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.mark(key);
        self.values.get(key).is_some_and(Value::is_null)
    }

    /// Keys that were not read, with their values. Empty ones are absent.
    pub(crate) fn unread(&self) -> Vec<(String, &'a Value)> {
        let read = self.read.borrow();
        let left = self
            .values
            .iter()
            .filter(|(key, value)| !read.contains(*key) && !is_empty(value));
        left.map(|(key, value)| (key.clone(), value)).collect()
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.mark(key);
        self.seen(key)
    }

    /// Says that a key is read.
    pub(super) fn mark(&self, key: &str) {
        self.read.borrow_mut().insert(key.to_owned());
    }
}

/// Whether a key has no value.
fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}
