//! A param's value as trackers that take JSON show it.

use serde_json::{Value, json};

use peft_tune_core::study::ParamValue;

/// Numbers and switches as they are, all else as text.
pub(super) fn param_json(value: &ParamValue) -> Value {
    match value {
        ParamValue::Bool(value) => json!(value),
        ParamValue::Int(value) => json!(value),
        ParamValue::Float(value) => json!(value),
        ParamValue::Text(_) | ParamValue::List(_) => json!(value.to_string()),
    }
}
