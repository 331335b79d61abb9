//! One value of a setting.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One value: two words, since thousands of trials are kept with theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ParamValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(
        #[serde(with = "counted")]
        #[schemars(with = "String")]
        Arc<String>,
    ),
    List(
        #[serde(with = "counted")]
        #[schemars(with = "Vec<String>")]
        Arc<Vec<String>>,
    ),
}

impl ParamValue {
    /// A list of names.
    pub fn list(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::List(Arc::new(names.into_iter().map(Into::into).collect()))
    }

    /// The value as a number, where it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether two values are equal, where a number's type does not matter.
    pub fn is_same(&self, other: &Self) -> bool {
        self == other || self.as_f64().is_some_and(|own| Some(own) == other.as_f64())
    }
}

impl fmt::Display for ParamValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(formatter),
            Self::Int(value) => value.fmt(formatter),
            // The shortest form that reads back as the same number; 3e-5 rather than 0.00003.
            Self::Float(value) if *value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e7) => {
                write!(formatter, "{value:e}")
            }
            Self::Float(value) => value.fmt(formatter),
            Self::Text(value) => value.fmt(formatter),
            Self::List(values) => values.join(",").fmt(formatter),
        }
    }
}

impl From<f64> for ParamValue {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<i64> for ParamValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for ParamValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for ParamValue {
    fn from(value: &str) -> Self {
        value.to_owned().into()
    }
}

impl From<String> for ParamValue {
    fn from(value: String) -> Self {
        Self::Text(Arc::new(value))
    }
}

/// Serialization of what is counted, as what it is.
mod counted {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_json_with_their_type() {
        for value in [
            ParamValue::Int(3),
            ParamValue::Float(3.0),
            true.into(),
            "sgd".into(),
            ParamValue::list(["q_proj"]),
        ] {
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<ParamValue>(&text).unwrap(), value, "{text}");
        }
    }

    #[test]
    fn numbers_are_the_same_whatever_their_type() {
        assert!(ParamValue::Int(2).is_same(&ParamValue::Float(2.0)));
        assert!(!ParamValue::Int(2).is_same(&ParamValue::Float(2.5)));
        assert!(ParamValue::from("2").is_same(&"2".into()));
        assert!(!ParamValue::from("2").is_same(&ParamValue::Int(2)));
        assert!(!ParamValue::from(true).is_same(&ParamValue::Int(1)));
    }

    #[test]
    fn small_floats_are_written_with_an_exponent() {
        assert_eq!(ParamValue::Float(0.00003).to_string(), "3e-5");
        assert_eq!(ParamValue::Float(0.25).to_string(), "0.25");
    }
}
