//! Values of parameters, compared and told.

use peft_tune_core::study::ParamValue;

/// Whether two values are equal, where a number's type does not matter.
pub(super) fn is_same(a: &ParamValue, b: &ParamValue) -> bool {
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64())
}

/// A value for people: floats to two digits.
pub(super) fn rounded(value: &ParamValue) -> ParamValue {
    match value {
        ParamValue::Float(value) => ParamValue::Float(format!("{value:.1e}").parse().unwrap_or(*value)),
        other => other.clone(),
    }
}
