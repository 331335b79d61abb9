//! Numbers with as many digits as a page can use.

use peft_tune_core::study::ParamValue;

/// A parameter's value with as many digits as tell settings apart.
pub(super) fn shown(value: &ParamValue) -> ParamValue {
    match value {
        ParamValue::Float(value) => ParamValue::Float(rounded_to(*value, 5)),
        other => other.clone(),
    }
}

/// Seven digits: more than a page shows, and half the file.
pub(super) fn rounded(value: f64) -> f64 {
    rounded_to(value, 6)
}

/// A number to one digit before the point and `digits` after it.
pub(super) fn rounded_to(value: f64, digits: usize) -> f64 {
    format!("{value:.digits$e}").parse().unwrap_or(value)
}
