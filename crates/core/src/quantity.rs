//! Sizes, counts, times and prices with their units: `22 GiB`, `60k`, `1h30m`, `2.49/h`.
//!
//! Fields of files that count tokens, rows or steps are plain numbers in the program and are read by [`count`],
//! [`optional_count`], [`optional_positive_count`], [`steps_or_share`] and [`optional_steps_or_share`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A size in bytes: `22 GiB` (2^30), `16GB` (10^9), `500MB`, or a plain number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A count: `60k`, `1.5M`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

/// A [`Count`] of 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PositiveCount(pub NonZeroU64);

/// A number of steps, which may be written as a [`Count`], or a fraction of all steps.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct StepsOrShare(pub f64);

/// A time in seconds: `90s`, `30m`, `1h30m`, or a plain number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

/// Text that is not a quantity of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct QuantityError {
    pub text: String,
    pub expected: &'static str,
}

/// Properties that the kinds of quantities have in common.
trait Quantity: Sized {
    const EXPECTED: &'static str;
    const NAME: &'static str;
    /// Regular expression of the text form, for the JSON schema.
    const PATTERN: &'static str;
    /// Type and least value of the plain number, for the JSON schema.
    const NUMBER: (&'static str, u64) = ("number", 0);
    fn from_number(value: f64) -> Option<Self>;
    /// Makes the quantity from a number that was written without a point; counts keep all its digits.
    fn from_integer(value: i128) -> Option<Self> {
        Self::from_number(value as f64)
    }
    fn from_text(text: &str) -> Option<Self>;
}

const BYTE_UNITS: &[(&str, f64)] = &[
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
];

const TIME_UNITS: &[(&str, f64)] = &[
    ("ms", 1e-3),
    ("s", 1.0),
    ("sec", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// Regular expression of a [`Count`]'s text form, for JSON schemas.
pub const COUNT_PATTERN: &str = r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*[kKMGB]?\s*$";

/// Ten years: clocks and durations count no further than some hundred.
const MOST_SECONDS: f64 = 10.0 * 366.0 * 86_400.0;

impl Quantity for Bytes {
    const EXPECTED: &'static str = "a size with its unit, such as 22 GiB, 16GB or 500MB";
    const NAME: &'static str = "Size";
    const PATTERN: &'static str = r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*([kKmMgGtT][iI]?)?[bB]?\s*$";

    fn from_number(value: f64) -> Option<Self> {
        whole(value).map(Self)
    }

    fn from_text(text: &str) -> Option<Self> {
        let (number, unit, rest) = first_part(text)?;
        if !rest.is_empty() {
            return None;
        }
        let unit = unit.to_lowercase();
        let (_, factor) = BYTE_UNITS
            .iter()
            .find(|(name, _)| unit == *name || unit.is_empty() && *name == "b")?;
        whole((number * factor).round()).map(Self)
    }
}

impl Quantity for Count {
    const EXPECTED: &'static str = "a whole number, such as 60000, 60k or 1.5M";
    const NAME: &'static str = "Count";
    const PATTERN: &'static str = COUNT_PATTERN;
    const NUMBER: (&'static str, u64) = ("integer", 0);

    fn from_number(value: f64) -> Option<Self> {
        whole(value).map(Self)
    }

    fn from_integer(value: i128) -> Option<Self> {
        u64::try_from(value).ok().map(Self)
    }

    fn from_text(text: &str) -> Option<Self> {
        let (number, unit, rest) = first_part(text)?;
        let factor = match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" | "B" => 1e9,
            _ => return None,
        };
        // 1.1k is 1100, though 1.1 * 1000 is not quite.
        let value = number * factor;
        let nearest = value.round();
        if !rest.is_empty() || (value - nearest).abs() > 1e-9 * nearest {
            return None;
        }
        whole(nearest).map(Self)
    }
}

impl Quantity for PositiveCount {
    const EXPECTED: &'static str = "a whole number, 1 or more, such as 60000, 60k or 1.5M";
    const NAME: &'static str = "PositiveCount";
    const PATTERN: &'static str = COUNT_PATTERN;
    const NUMBER: (&'static str, u64) = ("integer", 1);

    fn from_number(value: f64) -> Option<Self> {
        Count::from_number(value).and_then(Self::of)
    }

    fn from_integer(value: i128) -> Option<Self> {
        Count::from_integer(value).and_then(Self::of)
    }

    fn from_text(text: &str) -> Option<Self> {
        Count::from_text(text).and_then(Self::of)
    }
}

impl PositiveCount {
    fn of(count: Count) -> Option<Self> {
        NonZeroU64::new(count.0).map(Self)
    }
}

impl Quantity for StepsOrShare {
    const EXPECTED: &'static str = "a number of steps, such as 200 or 2k, or a fraction of them below 1";
    const NAME: &'static str = "StepsOrShare";
    const PATTERN: &'static str = COUNT_PATTERN;

    /// Reads any number; whoever reads the setting says which are legal.
    fn from_number(value: f64) -> Option<Self> {
        Some(Self(value))
    }

    fn from_text(text: &str) -> Option<Self> {
        Count::from_text(text).map(|count| Self(count.0 as f64))
    }
}

impl Quantity for Seconds {
    const EXPECTED: &'static str = "a time with its unit of at most ten years, such as 90s, 30m or 1h30m";
    const NAME: &'static str = "Time";
    const PATTERN: &'static str = r"^\s*([0-9][0-9_]*(\.[0-9]+)?\s*(ms|s|sec|m|min|h|d)?\s*)+$";

    fn from_number(value: f64) -> Option<Self> {
        (0.0..=MOST_SECONDS).contains(&value).then_some(Self(value))
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut total = 0.0;
        let mut unit_above = f64::INFINITY;
        while !rest.is_empty() {
            let (number, unit, next) = first_part(rest)?;
            // A bare number is seconds only where it stands alone: `1h30` could mean anything.
            let alone = rest.len() == text.len() && next.is_empty();
            let factor = match TIME_UNITS.iter().find(|(name, _)| *name == unit) {
                Some((_, factor)) => *factor,
                None if unit.is_empty() && alone => 1.0,
                None => return None,
            };
            if factor >= unit_above {
                return None;
            }
            (total, unit_above, rest) = (total + number * factor, factor, next);
        }
        Self::from_number(total).filter(|_| !text.is_empty())
    }
}

/// Number, unit and the rest of a text such as `1h30m`: 1, `h`, `30m`.
fn first_part(text: &str) -> Option<(f64, &str, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let number = text[..end].replace('_', "").parse().ok()?;
    let after = text[end..].trim_start();
    let unit_end = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
    Some((number, &after[..unit_end], after[unit_end..].trim_start()))
}

/// A whole number that a double holds exactly.
fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && value >= 0.0 && value.fract() == 0.0 && value <= 9_007_199_254_740_992.0)
        .then_some(value as u64)
}

struct QuantityVisitor<T>(PhantomData<T>);

impl<T: Quantity> Visitor<'_> for QuantityVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(T::EXPECTED)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        T::from_integer(value.into()).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        T::from_integer(value.into()).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        T::from_number(value).ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text.trim()).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

fn schema_of<T: Quantity>() -> Schema {
    let (number, least) = T::NUMBER;
    json_schema!({
        "description": T::EXPECTED,
        "anyOf": [{"type": number, "minimum": least}, {"type": "string", "pattern": T::PATTERN}],
    })
}

/// The outside of a quantity: parsing from text, from a file, and its schema.
macro_rules! quantity {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = QuantityError;

            fn from_str(text: &str) -> Result<Self, QuantityError> {
                Self::from_text(text.trim()).ok_or_else(|| QuantityError {
                    text: text.to_owned(),
                    expected: Self::EXPECTED,
                })
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(QuantityVisitor(PhantomData))
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                Self::NAME.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schema_of::<Self>()
            }
        }
    };
}

quantity!(Bytes);
quantity!(Count);
quantity!(PositiveCount);
quantity!(StepsOrShare);
quantity!(Seconds);

// Behind the macro, which it uses.
mod price;

pub use price::{Dollars, HourlyPrice};

/// Reads a [`Count`] in the type of its field, for `deserialize_with`.
///
/// # Errors
/// No count, or one that the type does not hold.
pub fn count<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let Count(count) = Count::deserialize(deserializer)?;
    held(count)
}

/// Reads a [`Count`] of a field that may be absent.
///
/// # Errors
/// Errors of [`count`].
pub fn optional_count<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let count = Option::<Count>::deserialize(deserializer)?;
    count.map(|Count(count)| held(count)).transpose()
}

/// Reads a [`Count`] of a field that may be absent, and is 1 or more.
///
/// # Errors
/// Errors of [`count`], and for 0.
pub fn optional_positive_count<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<NonZeroU64>,
{
    let count = Option::<PositiveCount>::deserialize(deserializer)?;
    let held = |PositiveCount(count)| T::try_from(count).map_err(|_| too_large::<D::Error>(count.get()));
    count.map(held).transpose()
}

/// Reads the number of [`StepsOrShare`], for `deserialize_with`.
///
/// # Errors
/// No number of steps, and no fraction.
pub fn steps_or_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    StepsOrShare::deserialize(deserializer).map(|number| number.0)
}

/// Reads the number of [`StepsOrShare`] of a field that may be absent.
///
/// # Errors
/// Errors of [`steps_or_share`].
pub fn optional_steps_or_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = Option::<StepsOrShare>::deserialize(deserializer)?;
    Ok(number.map(|number| number.0))
}

fn held<T: TryFrom<u64>, E: de::Error>(count: u64) -> Result<T, E> {
    T::try_from(count).map_err(|_| too_large(count))
}

fn too_large<E: de::Error>(count: u64) -> E {
    E::invalid_value(de::Unexpected::Unsigned(count), &"a smaller whole number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_tell_decimal_from_binary_units() {
        let bytes = |text: &str| text.parse::<Bytes>().map(|size| size.0).ok();
        assert_eq!(bytes("22 GiB"), Some(22 << 30));
        assert_eq!(bytes("16GB"), Some(16_000_000_000));
        assert_eq!(bytes("1.5 MiB"), Some(3 << 19));
        assert_eq!(bytes("500mb"), Some(500_000_000));
        assert_eq!(bytes("4096"), Some(4096));
        for wrong in ["16G", "GiB", "-1 GiB", "16 GiB 2", "16 apples", "", "1e3GB", "1.2.3GB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn counts_are_whole() {
        let count = |text: &str| text.parse::<Count>().map(|count| count.0).ok();
        assert_eq!(count("60k"), Some(60_000));
        assert_eq!(count("1.5M"), Some(1_500_000));
        assert_eq!(count("1.1k"), Some(1100));
        assert_eq!(count("60_000"), Some(60_000));
        assert_eq!(count("2B"), Some(2_000_000_000));
        for wrong in ["1.2345k", "1.5", "60m", "k", "60k tokens", "1k2"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn fields_read_counts_in_their_own_type() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Fields {
            #[serde(deserialize_with = "count")]
            rows: u8,
            #[serde(default, deserialize_with = "optional_count")]
            tokens: Option<u64>,
            #[serde(default, deserialize_with = "optional_positive_count")]
            steps: Option<std::num::NonZeroU8>,
            #[serde(default, deserialize_with = "optional_steps_or_share")]
            warmup: Option<f64>,
        }
        let read = |text: &str| serde_json::from_str::<Fields>(text).ok();
        let fields = read(r#"{"rows": 7, "tokens": "1.5M", "steps": 9.0, "warmup": "2k"}"#).unwrap();
        assert_eq!((fields.rows, fields.tokens), (7, Some(1_500_000)));
        assert_eq!((fields.steps.map(u8::from), fields.warmup), (Some(9), Some(2000.0)));
        let fields = read(r#"{"rows": "0", "tokens": null, "warmup": 0.03}"#).unwrap();
        assert_eq!((fields.rows, fields.tokens, fields.steps), (0, None, None));
        assert_eq!(fields.warmup, Some(0.03));
        // All digits of the largest numbers.
        let tokens = read(r#"{"rows": 1, "tokens": 18446744073709551615}"#).unwrap().tokens;
        assert_eq!(tokens, Some(u64::MAX));
        for wrong in [
            r#"{"rows": "1k"}"#,
            r#"{"rows": -1}"#,
            r#"{"rows": 1.5}"#,
            r#"{"rows": 1, "tokens": "1.0005k tokens"}"#,
            r#"{"rows": 1, "tokens": "1.23456k"}"#,
            r#"{"rows": 1, "steps": 0}"#,
            r#"{"rows": 1, "steps": "0k"}"#,
            r#"{"rows": 1, "warmup": "0.5"}"#,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_add_up_from_large_to_small_units() {
        let seconds = |text: &str| text.parse::<Seconds>().map(|time| time.0).ok();
        assert_eq!(seconds("1h30m"), Some(5400.0));
        assert_eq!(seconds("1h 30m"), Some(5400.0));
        assert_eq!(seconds("90"), Some(90.0));
        assert_eq!(seconds("1.5h"), Some(5400.0));
        assert_eq!(seconds("250ms"), Some(0.25));
        assert_eq!(seconds("2 min"), Some(120.0));
        for wrong in ["30m1h", "1h30", "m", "", "-5s", "5 weeks", "1m1m"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
