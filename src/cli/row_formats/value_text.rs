//! A value, and the names of columns, as text.

use std::borrow::Cow;

use crate::store::SqlValue;
use peft_tune_core::hexadecimal;

/// Names that can be keys of one object: a name that comes again gets a number.
pub(super) fn distinct(names: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let free = std::iter::once(name.clone())
            .chain(numbered)
            .find(|candidate| !seen.contains(candidate));
        seen.extend(free);
    }
    seen
}

/// The value as text: numbers so that they read back as the same, blobs in hexadecimal, null as nothing.
pub(super) fn text<'a>(value: &'a SqlValue<'_>) -> Cow<'a, str> {
    match value {
        SqlValue::Null => Cow::Borrowed(""),
        SqlValue::Integer(value) => Cow::Owned(value.to_string()),
        SqlValue::Real(value) => Cow::Owned(format!("{value:?}")),
        SqlValue::Text(value) => Cow::Borrowed(value),
        SqlValue::Blob(bytes) => Cow::Owned(hexadecimal(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_one_name_stay_apart_in_json() {
        let names = ["id", "id", "id_2", "id"].map(str::to_owned);
        assert_eq!(distinct(&names), ["id", "id_2", "id_2_2", "id_3"]);
    }

    #[test]
    fn reals_read_back_as_the_same() {
        for value in [0.1 + 0.2, 1e-300, 3.0, -0.0] {
            assert_eq!(text(&SqlValue::Real(value)).parse::<f64>().unwrap(), value);
        }
    }
}
