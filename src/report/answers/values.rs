//! Values of parameters as they are told.

use peft_tune_core::study::ParamValue;

/// A value for people: floats to two digits.
pub(super) fn rounded(value: &ParamValue) -> ParamValue {
    match value {
        ParamValue::Float(value) => ParamValue::Float(format!("{value:.1e}").parse().unwrap_or(*value)),
        other => other.clone(),
    }
}
