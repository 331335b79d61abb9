//! Names of variants.

/// The name of a variant as recipe files have it.
pub(super) fn named(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
