//! Values of an event, of whatever type they are: traces differ in that from one version to the next.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value of JSON, as far as events need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Value {
    Number(f64),
    Text(String),
    List(Vec<Self>),
    /// Nothing, a truth value or an object.
    #[default]
    Other,
}

impl Value {
    /// The number, also where it is written as a text.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            Self::List(_) | Self::Other => None,
        }
    }

    /// The number as a count; negative ones and fractions are none.
    pub(super) fn count(&self) -> Option<u64> {
        let number = self.number()?;
        (number >= 0.0 && number.fract() == 0.0).then_some(number as u64)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Entries of a list; none of anything else.
    pub(super) fn list(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            _ => &[],
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            list.push(entry);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_type_are_read() {
        let value: Value = serde_json::from_str(r#"[[2, 8], "Scalar", null, {"a": [1]}, true, "7", -1, 2.5]"#).unwrap();
        let list = value.list();
        assert_eq!(list[0], Value::List(vec![Value::Number(2.0), Value::Number(8.0)]));
        assert_eq!((list[1].text(), list[1].number()), (Some("Scalar"), None));
        assert_eq!(list[2..5], [Value::Other, Value::Other, Value::Other]);
        assert_eq!(
            (list[5].count(), list[6].count(), list[7].count()),
            (Some(7), None, None)
        );
        assert!(list[5].list().is_empty());
    }
}
