//! Money in US dollars: the price of an hour, `2.49/h`, and a sum, `5`.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer};

use super::{Quantity, QuantityError, QuantityVisitor, schema_of};

/// A price of an hour, in US dollars: `2.49/h`, `$2.49/h`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct HourlyPrice(pub f64);

/// A sum of US dollars: `5`, `$0.50`. A shell takes `$5` for a variable, so that examples are without the sign.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Dollars(pub f64);

/// Largest sum, far above what trainings cost.
const MOST_DOLLARS: f64 = 1e9;

/// Names of the hour behind a price.
const HOURS: [&str; 3] = ["h", "hr", "hour"];

impl Quantity for HourlyPrice {
    const EXPECTED: &'static str = "a price of an hour above 0 in US dollars, such as 2.49/h or $0.80/h";
    const NAME: &'static str = "HourlyPrice";
    const PATTERN: &'static str = r"^\s*\$?\s*[0-9][0-9_]*(\.[0-9]+)?\s*(/\s*(h|hr|hour)\s*)?$";

    fn from_number(value: f64) -> Option<Self> {
        sound(value).map(Self)
    }

    fn from_text(text: &str) -> Option<Self> {
        let amount = match text.split_once('/') {
            Some((amount, hour)) => HOURS.contains(&hour.trim()).then_some(amount)?,
            None => text,
        };
        amount_of(amount).and_then(Self::from_number)
    }
}

impl Quantity for Dollars {
    const EXPECTED: &'static str = "a sum above 0 in US dollars, such as 5 or 0.50";
    const NAME: &'static str = "Dollars";
    const PATTERN: &'static str = r"^\s*\$?\s*[0-9][0-9_]*(\.[0-9]+)?\s*$";

    fn from_number(value: f64) -> Option<Self> {
        sound(value).map(Self)
    }

    fn from_text(text: &str) -> Option<Self> {
        amount_of(text).and_then(Self::from_number)
    }
}

quantity!(HourlyPrice);
quantity!(Dollars);

fn sound(value: f64) -> Option<f64> {
    (value > 0.0 && value <= MOST_DOLLARS).then_some(value)
}

/// The number of `$1_000.50`.
fn amount_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let number = text.strip_prefix('$').unwrap_or(text).trim();
    let is_plain = |c: char| c.is_ascii_digit() || c == '.' || c == '_';
    let begins = number.starts_with(|c: char| c.is_ascii_digit());
    (begins && number.chars().all(is_plain)).then(|| number.replace('_', "").parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_of_an_hour() {
        let price = |text: &str| text.parse::<HourlyPrice>().map(|price| price.0).ok();
        for (text, value) in [
            ("2.49/h", 2.49),
            ("$2.49/h", 2.49),
            ("$ 0.80 / hour", 0.8),
            ("3/hr", 3.0),
            ("2.49", 2.49),
        ] {
            assert_eq!(price(text), Some(value), "{text}");
        }
        for wrong in [
            "",
            "0/h",
            "-1/h",
            "2.49/day",
            "2.49 EUR/h",
            "1e3/h",
            "/h",
            "1.2.3/h",
            "2/h/h",
        ] {
            assert_eq!(price(wrong), None, "{wrong}");
        }
        let read = |json: &str| serde_json::from_str::<HourlyPrice>(json).map(|price| price.0).ok();
        assert_eq!(
            (read("2.49"), read("3"), read("\"$3/h\"")),
            (Some(2.49), Some(3.0), Some(3.0))
        );
        let refused = serde_json::from_str::<HourlyPrice>("0").unwrap_err().to_string();
        assert!(refused.contains("such as 2.49/h"), "{refused}");
    }

    #[test]
    fn sums_may_have_a_dollar_sign() {
        let sum = |text: &str| text.parse::<Dollars>().map(|sum| sum.0).ok();
        assert_eq!(
            (sum("$5"), sum("0.50"), sum("$1_000")),
            (Some(5.0), Some(0.5), Some(1000.0))
        );
        for wrong in ["", "$", "$0", "5/h", "5$", "five", "-3"] {
            assert_eq!(sum(wrong), None, "{wrong}");
        }
    }
}
