//! Typed reading of a `config.json`: every mistake names the file and the key.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ArchitectureError;

/// The largest dimension taken for real; anything above is a damaged file, and would overflow products of sizes.
pub(super) const LARGEST_DIMENSION: usize = 1 << 24;

/// One JSON object of a configuration file, with the file's path and the object's own place in it.
#[derive(Clone, Debug)]
pub(super) struct Config {
    path: PathBuf,
    /// Keys that lead to this object, each with a dot behind it; empty at the top.
    prefix: String,
    map: Map<String, Value>,
}

impl Config {
    /// Reads `path`, which must hold one JSON object.
    pub(super) fn read(path: &Path) -> Result<Self, ArchitectureError> {
        let text = crate::bounded::read_text(path, crate::bounded::SETTINGS_BYTES).map_err(|source| {
            ArchitectureError::Read {
                path: path.to_owned(),
                source,
            }
        })?;
        Self::parse(path, &text)
    }

    /// Parses the text of `path`.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ArchitectureError> {
        let map = crate::python_json::from_str(text).map_err(|source| ArchitectureError::Json {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::new(path, map))
    }

    /// The object at the top of `path`.
    pub(super) fn new(path: &Path, map: Map<String, Value>) -> Self {
        Self {
            path: path.to_owned(),
            prefix: String::new(),
            map,
        }
    }

    /// The value of `key`; JSON null counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// All keys that are written.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Whether `key` is written at all, be it as null.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The object under `key`, if there is one.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, ArchitectureError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let Value::Object(map) = value else {
            return Err(self.wrong_type(key, "an object", value));
        };
        Ok(Some(Self {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            map: map.clone(),
        }))
    }

    /// A dimension: a whole number from 1.
    pub(super) fn dimension(&self, key: &str) -> Result<usize, ArchitectureError> {
        self.optional_dimension(key)?.ok_or_else(|| self.missing(key))
    }

    /// A dimension that may be absent.
    pub(super) fn optional_dimension(&self, key: &str) -> Result<Option<usize>, ArchitectureError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let Some(number) = value.as_u64() else {
            return Err(self.wrong_type(key, "a whole number", value));
        };
        if number == 0 || number > LARGEST_DIMENSION as u64 {
            return Err(self.impossible(key, value, format!("from 1 to {LARGEST_DIMENSION}")));
        }
        Ok(Some(number as usize))
    }

    /// A count that may be zero or absent.
    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, ArchitectureError> {
        match self.value(key) {
            Some(value) if value.as_u64() == Some(0) => Ok(Some(0)),
            _ => self.optional_dimension(key),
        }
    }

    /// A finite positive number that may be absent.
    pub(super) fn optional_positive(&self, key: &str) -> Result<Option<f64>, ArchitectureError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return Err(self.wrong_type(key, "a number", value));
        };
        if !(number.is_finite() && number > 0.0) {
            return Err(self.impossible(key, value, "above 0".to_owned()));
        }
        Ok(Some(number))
    }

    /// A finite positive number that must be there.
    pub(super) fn positive(&self, key: &str) -> Result<f64, ArchitectureError> {
        self.optional_positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A truth value, `default` where absent.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, ArchitectureError> {
        match self.value(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong_type(key, "true or false", other)),
        }
    }

    /// A list of zeros and ones, or of truth values, that may be absent.
    pub(super) fn optional_flags(&self, key: &str) -> Result<Option<Vec<bool>>, ArchitectureError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let flag = |item: &Value| match (item.as_bool(), item.as_u64()) {
            (Some(flag), _) => Some(flag),
            (None, Some(number @ (0 | 1))) => Some(number == 1),
            _ => None,
        };
        let flags = value.as_array().and_then(|items| items.iter().map(flag).collect());
        match flags {
            Some(flags) => Ok(Some(flags)),
            None => Err(self.wrong_type(key, "a list of zeros and ones", value)),
        }
    }

    /// Refuses a switch that is on, and a count above 0.
    pub(super) fn check_off(&self, key: &str) -> Result<(), ArchitectureError> {
        match self.value(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(value) if value.as_f64() == Some(0.0) => Ok(()),
            Some(value) => Err(self.unsupported(key, &value.to_string(), "false, or 0")),
        }
    }

    /// A text that may be absent.
    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&str>, ArchitectureError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(key, "a string", other)),
        }
    }

    /// A text that must be there.
    pub(super) fn text(&self, key: &str) -> Result<&str, ArchitectureError> {
        self.optional_text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of texts that may be absent.
    pub(super) fn optional_texts(&self, key: &str) -> Result<Option<Vec<&str>>, ArchitectureError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let texts = value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_str).collect());
        match texts {
            Some(texts) => Ok(Some(texts)),
            None => Err(self.wrong_type(key, "a list of strings", value)),
        }
    }

    /// A list of counts that may be absent.
    pub(super) fn optional_counts(&self, key: &str) -> Result<Option<Vec<usize>>, ArchitectureError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let count = |item: &Value| item.as_u64().filter(|count| *count <= LARGEST_DIMENSION as u64);
        let counts: Option<Vec<usize>> = value.as_array().and_then(|items| {
            items
                .iter()
                .map(|item| count(item).map(|count| count as usize))
                .collect()
        });
        match counts {
            Some(counts) => Ok(Some(counts)),
            None => Err(self.wrong_type(key, "a list of whole numbers", value)),
        }
    }

    /// A list of positive numbers that must be there.
    pub(super) fn positives(&self, key: &str) -> Result<Vec<f64>, ArchitectureError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let numbers: Option<Vec<f64>> = value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_f64).collect());
        match numbers {
            Some(numbers) if numbers.iter().all(|number| *number > 0.0 && number.is_finite()) => Ok(numbers),
            _ => Err(self.wrong_type(key, "a list of positive numbers", value)),
        }
    }

    /// The error for a key that is not there.
    pub(super) fn missing(&self, key: &str) -> ArchitectureError {
        ArchitectureError::Missing {
            path: self.path.clone(),
            key: self.place(key),
        }
    }

    /// The error for a value that breaks `rule`.
    pub(super) fn impossible(&self, key: &str, value: impl ToString, rule: String) -> ArchitectureError {
        ArchitectureError::Impossible {
            path: self.path.clone(),
            key: self.place(key),
            value: value.to_string(),
            rule,
        }
    }

    /// The error for a choice that this engine does not have.
    pub(super) fn unsupported(&self, key: &str, value: &str, supported: &'static str) -> ArchitectureError {
        ArchitectureError::Unsupported {
            path: self.path.clone(),
            key: self.place(key),
            value: value.to_owned(),
            supported,
        }
    }

    /// Writes `value` under `key`.
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    /// Writes `default` under `key` where nothing is written there, or null.
    pub(super) fn set_default(&mut self, key: &str, default: Value) {
        if self.value(key).is_none() {
            self.map.insert(key.to_owned(), default);
        }
    }

    /// The error for a model family that this engine does not have.
    pub(super) fn unknown_family(
        &self,
        model_type: &str,
        nearest: &'static str,
        missing: Vec<String>,
        supported: Vec<&'static str>,
    ) -> ArchitectureError {
        ArchitectureError::UnknownFamily {
            path: self.path.clone(),
            model_type: model_type.to_owned(),
            nearest,
            missing,
            supported,
        }
    }

    fn wrong_type(&self, key: &str, expected: &'static str, got: &Value) -> ArchitectureError {
        ArchitectureError::WrongType {
            path: self.path.clone(),
            key: self.place(key),
            expected,
            // A long value would hide the message.
            got: got.to_string().chars().take(60).collect(),
        }
    }

    fn place(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("model/config.json"), text).unwrap()
    }

    #[test]
    fn a_missing_key_names_file_and_key() {
        let error = config("{}").dimension("hidden_size").unwrap_err().to_string();
        assert!(
            error.starts_with("key `hidden_size` is missing in model/config.json"),
            "{error}"
        );
    }

    #[test]
    fn a_nested_key_is_named_with_its_path() {
        let outer = config(r#"{"rope_scaling": {"factor": "eight"}}"#);
        let inner = outer.object("rope_scaling").unwrap().unwrap();
        let error = inner.positive("factor").unwrap_err().to_string();
        assert_eq!(
            error,
            "key `rope_scaling.factor` in model/config.json is \"eight\", but must be a number"
        );
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        for size in ["0", "-1", "1.5", "1e30", "18446744073709551615"] {
            assert!(config(&format!(r#"{{"n": {size}}}"#)).dimension("n").is_err(), "{size}");
        }
    }

    #[test]
    fn broken_json_names_the_file() {
        let error = Config::parse(Path::new("config.json"), "{").unwrap_err().to_string();
        assert!(error.starts_with("config.json is not valid JSON"), "{error}");
    }
}
