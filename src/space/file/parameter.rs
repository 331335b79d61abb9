//! One parameter of the `space` section as it is written: a value, a list of choices, or keys and values.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Count, Entries};
use peft_tune_core::quantity::COUNT_PATTERN;
use peft_tune_core::recipe::settings::{Legal, SettingRow};
use peft_tune_core::space::Scale;
use peft_tune_core::study::ParamValue;

/// What stands behind a parameter's name.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterEntry {
    /// `rank: 8`
    Fixed(FileValue),
    /// `rank: [4, 8, 16]`
    Choices(Vec<FileValue>),
    /// `rank: {low: 4, high: 64}` and the like.
    Detailed(Box<DetailedParameter>),
}

/// A parameter written out with keys: a range (`low`, `high`), `choices`, or a `value`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetailedParameter {
    /// Smallest value of a range, included.
    pub low: Option<Number>,
    /// Largest value of a range, included.
    pub high: Option<Number>,
    /// `log` divides the range evenly in the logarithm, as learning rates want it; default `linear`.
    pub scale: Option<Scale>,
    /// Distance of neighbouring values, counted from `low`; default 1 for whole numbers, none for others.
    pub step: Option<Number>,
    /// `true` keeps the range as it is. Else a search widens it by itself where the best trials sit on its edge, for settings that
    /// change the loss alone; a command's parameter only with `false`.
    pub fixed: Option<bool>,
    /// The values to choose from.
    pub choices: Option<Vec<FileValue>>,
    /// The one value, for a parameter that exists only under its condition.
    pub value: Option<FileValue>,
    /// The parameter exists only where another, standing above it, has this value or one of these:
    /// `when: {optimizer: sgd}`.
    pub when: Option<Entries<FileValue>>,
    /// Metrics that the parameter can change; for command backends only: of all others it is known.
    pub affects: Option<Vec<String>>,
}

/// A number, and how it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i64),
    Float(f64),
    /// A [`Count`] with its unit, which is a whole number.
    Count(i64),
}

impl Number {
    /// The number as a double.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Int(value) | Self::Count(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// The number where it is whole, however it was written.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Self::Int(value) | Self::Count(value) => Some(value),
            Self::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => Some(value as i64),
            Self::Float(_) => None,
        }
    }
}

/// A value, or a list of values (which is one value for `target_modules`); `null` reads as `none`.
#[derive(Clone, Debug, PartialEq)]
pub enum FileValue {
    One(ParamValue),
    List(Vec<FileValue>),
}

impl FileValue {
    /// The value as a parameter holds it; a list of names is one value. `None` for any other list.
    pub fn to_param(&self) -> Option<ParamValue> {
        match self {
            Self::One(value) => Some(value.clone()),
            Self::List(values) => values
                .iter()
                .map(|value| match value {
                    Self::One(ParamValue::Text(name)) => Some(name.to_string()),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>()
                .map(ParamValue::list),
        }
    }

    /// The value as a setting holds it (a number for a number or a count such as `2k`), or `None` where it is not legal.
    pub fn to_legal(&self, row: &SettingRow) -> Option<ParamValue> {
        let value = match self.to_param()? {
            ParamValue::Text(text) if row.is_count() => ParamValue::Int(count(&text)?),
            value => value,
        };
        let value = match (&row.legal, value) {
            (Legal::Float(_) | Legal::FloatOrNone(_), ParamValue::Int(number)) => ParamValue::Float(number as f64),
            (_, value) => value,
        };
        row.legal.allows(&value).then_some(value)
    }
}

impl fmt::Display for FileValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(value) => write!(formatter, "`{value}`"),
            Self::List(values) => {
                let values: Vec<_> = values.iter().map(|value| value.to_string().replace('`', "")).collect();
                write!(formatter, "[{}]", values.join(", "))
            }
        }
    }
}

/// The number that a count such as `2k` is.
fn count(text: &str) -> Option<i64> {
    i64::try_from(text.parse::<Count>().ok()?.0).ok()
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
        Ok(Number::Int(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
        Ok(Number::Float(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
        let number = count(text).map(Number::Count);
        number.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl JsonSchema for Number {
    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": COUNT_PATTERN}]})
    }
}

struct FileValueVisitor;

impl<'de> Visitor<'de> for FileValueVisitor {
    type Value = FileValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value or a list of values")
    }

    fn visit_unit<E: de::Error>(self) -> Result<FileValue, E> {
        Ok(FileValue::One("none".into()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<FileValue, E> {
        Ok(FileValue::One(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<FileValue, E> {
        Ok(FileValue::One(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<FileValue, E> {
        Ok(FileValue::One(value.into()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<FileValue, E> {
        Ok(FileValue::One(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FileValue, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(FileValue::List(values))
    }
}

impl<'de> Deserialize<'de> for FileValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FileValueVisitor)
    }
}

impl JsonSchema for FileValue {
    fn schema_name() -> Cow<'static, str> {
        "Value".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let scalar = ["boolean", "number", "string", "null"];
        json_schema!({
            "description": "A value or a list of values.",
            "anyOf": [
                {"type": scalar},
                {"type": "array", "items": {"anyOf": [{"type": scalar}, {"type": "array", "items": {"type": "string"}}]}},
            ],
        })
    }
}

struct ParameterVisitor;

impl<'de> Visitor<'de> for ParameterVisitor {
    type Value = ParameterEntry;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value, a list of choices, or a range {low: .., high: ..}")
    }

    fn visit_unit<E: de::Error>(self) -> Result<ParameterEntry, E> {
        FileValueVisitor.visit_unit().map(ParameterEntry::Fixed)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<ParameterEntry, E> {
        FileValueVisitor.visit_bool(value).map(ParameterEntry::Fixed)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ParameterEntry, E> {
        FileValueVisitor.visit_i64(value).map(ParameterEntry::Fixed)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<ParameterEntry, E> {
        FileValueVisitor.visit_f64(value).map(ParameterEntry::Fixed)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<ParameterEntry, E> {
        FileValueVisitor.visit_str(value).map(ParameterEntry::Fixed)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ParameterEntry, A::Error> {
        let mut choices = Vec::new();
        while let Some(choice) = list.next_element()? {
            choices.push(choice);
        }
        Ok(ParameterEntry::Choices(choices))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ParameterEntry, A::Error> {
        DetailedParameter::deserialize(de::value::MapAccessDeserializer::new(map))
            .map(|details| ParameterEntry::Detailed(Box::new(details)))
    }
}

impl<'de> Deserialize<'de> for ParameterEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParameterVisitor)
    }
}

impl JsonSchema for ParameterEntry {
    fn schema_name() -> Cow<'static, str> {
        "Parameter".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<FileValue>();
        let details = generator.subschema_for::<DetailedParameter>();
        json_schema!({
            "description": "A value (fixed), a list of choices, or keys: a range `low`/`high`, `choices` or `value`, with `when`.",
            "anyOf": [value, details],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::settings::setting;

    fn legal(name: &str, value: impl Into<ParamValue>) -> Option<ParamValue> {
        FileValue::One(value.into()).to_legal(setting(name).unwrap())
    }

    #[test]
    fn whole_numbers_become_numbers_where_numbers_are_asked_for() {
        assert_eq!(legal("learning_rate", 1i64), Some(ParamValue::Float(1.0)));
        assert_eq!(legal("learning_rate", 0i64), None);
        assert_eq!(legal("rank", 2.0), None);
    }

    #[test]
    fn settings_that_count_take_units() {
        assert_eq!(legal("sequence_length", "2k"), Some(ParamValue::Int(2000)));
        assert_eq!(legal("warmup", "1.5k"), Some(ParamValue::Float(1500.0)));
        assert_eq!(legal("sequence_length", "1.0005k"), None);
        assert_eq!(legal("sequence_length", "0k"), None);
        assert_eq!(legal("rank", "1k"), None);
        assert_eq!(legal("learning_rate", "1k"), None);
    }
}
