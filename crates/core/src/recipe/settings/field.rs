//! Conversion of a sampled value to the field of a recipe, and back.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SetError;
use crate::recipe::ParamValue;

/// Puts a value that was understood into its field.
pub(super) fn put<T>(field: &mut T, value: Option<T>) -> Result<(), SetError> {
    *field = value.ok_or(SetError::Inapplicable)?;
    Ok(())
}

/// The name under which serde writes a unit variant.
pub(super) fn name_of<T: Serialize>(value: &T) -> Option<ParamValue> {
    let name = serde_json::to_value(value).ok()?;
    name.as_str().map(ParamValue::from)
}

/// The unit variant that serde reads from a name.
pub(super) fn named<T: DeserializeOwned>(value: &ParamValue) -> Option<T> {
    match value {
        ParamValue::Text(name) => serde_json::from_value(name.as_str().into()).ok(),
        _ => None,
    }
}

pub(super) fn truth(value: &ParamValue) -> Option<bool> {
    match value {
        ParamValue::Bool(value) => Some(*value),
        _ => None,
    }
}

pub(super) fn count(value: &ParamValue) -> Option<usize> {
    match value {
        ParamValue::Int(value) => usize::try_from(*value).ok(),
        _ => None,
    }
}

/// A number, or `none` where there is none.
pub(super) fn or_none(value: Option<f64>) -> ParamValue {
    value.map_or("none".into(), ParamValue::Float)
}

/// A number, or `none`; the outer `None` where it is neither.
pub(super) fn maybe(value: &ParamValue) -> Option<Option<f64>> {
    match value {
        ParamValue::Text(name) if name.as_str() == "none" => Some(None),
        value => value.as_f64().map(Some),
    }
}
