//! The sampled values of one trial.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One sampled value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ParamValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<String>),
}

impl ParamValue {
    /// The value as a number, where it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
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
        Self::Text(value.to_owned())
    }
}

/// Values by parameter name, in name order; a parameter whose condition does not hold is absent.
pub type Params = BTreeMap<String, ParamValue>;

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
            ParamValue::List(vec!["q_proj".into()]),
        ] {
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<ParamValue>(&text).unwrap(), value, "{text}");
        }
    }

    #[test]
    fn small_floats_are_written_with_an_exponent() {
        assert_eq!(ParamValue::Float(0.00003).to_string(), "3e-5");
        assert_eq!(ParamValue::Float(0.25).to_string(), "0.25");
    }
}
