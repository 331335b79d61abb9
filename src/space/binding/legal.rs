//! Which values a parameter may take at all.

use std::fmt;

use crate::space::file::FileValue;
use peft_tune_core::recipe::Checkpointing;
use peft_tune_core::study::ParamValue;

/// The legal values of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Legal {
    /// Whole numbers, bounds included.
    Int {
        least: i64,
        most: i64,
    },
    Float(FloatRange),
    /// A number, or `none` to do without.
    FloatOrNone(FloatRange),
    Bool,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// `none`, `every_N`, `full` or `offload`.
    Checkpointing,
    /// `all-linear`, `attention`, `mlp`, or a list of module names.
    Targets,
}

/// Numbers from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloatRange {
    pub low: f64,
    pub low_included: bool,
    pub high: f64,
    pub high_included: bool,
}

/// Shorthands for sets of target modules.
pub const TARGET_PRESETS: [&str; 3] = ["all-linear", "attention", "mlp"];

impl FloatRange {
    /// Above zero.
    pub const POSITIVE: Self = Self {
        low: 0.0,
        low_included: false,
        high: f64::INFINITY,
        high_included: false,
    };
    /// Zero or more.
    pub const NOT_NEGATIVE: Self = Self {
        low_included: true,
        ..Self::POSITIVE
    };
    /// Zero or more and below one.
    pub const BELOW_ONE: Self = Self {
        low: 0.0,
        low_included: true,
        high: 1.0,
        high_included: false,
    };

    /// Whether `value` lies within.
    pub fn allows(&self, value: f64) -> bool {
        let above = value > self.low || self.low_included && value == self.low;
        let below = value < self.high || self.high_included && value == self.high;
        above && below && value.is_finite()
    }
}

impl Legal {
    /// Whether a recipe can take `value`.
    pub fn allows(&self, value: &ParamValue) -> bool {
        match (self, value) {
            (Self::Int { least, most }, ParamValue::Int(value)) => (least..=most).contains(&value),
            (Self::Float(range) | Self::FloatOrNone(range), ParamValue::Float(value)) => range.allows(*value),
            (Self::Float(range) | Self::FloatOrNone(range), ParamValue::Int(value)) => range.allows(*value as f64),
            (Self::FloatOrNone(_), ParamValue::Text(name)) => name.as_str() == "none",
            (Self::Bool, ParamValue::Bool(_)) => true,
            (Self::Choice(names), ParamValue::Text(name)) => names.contains(&name.as_str()),
            (Self::Checkpointing, ParamValue::Text(name)) => Checkpointing::from_name(name).is_some(),
            (Self::Targets, ParamValue::Text(name)) => TARGET_PRESETS.contains(&name.as_str()),
            (Self::Targets, ParamValue::List(names)) => !names.is_empty(),
            _ => false,
        }
    }

    /// The value as this parameter holds it (a number for a number), or `None` where it is not legal.
    pub fn read(&self, value: &FileValue) -> Option<ParamValue> {
        let value = value.to_param()?;
        let value = match (self, value) {
            (Self::Float(_) | Self::FloatOrNone(_), ParamValue::Int(number)) => ParamValue::Float(number as f64),
            (_, value) => value,
        };
        self.allows(&value).then_some(value)
    }

    /// Whether a range (`low`, `high`) makes sense.
    pub fn is_numeric(&self) -> bool {
        matches!(self, Self::Int { .. } | Self::Float(_) | Self::FloatOrNone(_))
    }
}

/// In words that fit after "write".
impl fmt::Display for Legal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int { least, most } => write!(formatter, "a whole number from {least} to {most}"),
            Self::Float(range) => range.fmt(formatter),
            Self::FloatOrNone(range) => write!(formatter, "{range}, or none"),
            Self::Bool => formatter.write_str("true or false"),
            Self::Choice(names) => write!(formatter, "one of {}", names.join(", ")),
            Self::Checkpointing => formatter.write_str("none, every_N (every_2, every_3, ...), full or offload"),
            Self::Targets => write!(
                formatter,
                "one of {}, or a list of module names (one set is `[[q_proj, v_proj]]`)",
                TARGET_PRESETS.join(", ")
            ),
        }
    }
}

impl fmt::Display for FloatRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = if self.low_included { "from" } else { "above" };
        match (self.high.is_finite(), self.high_included) {
            (false, _) if self.low_included => write!(formatter, "a number, {} or more", self.low),
            (false, _) => write!(formatter, "a number {low} {}", self.low),
            (true, true) => write!(formatter, "a number {low} {} to {}", self.low, self.high),
            (true, false) => write!(formatter, "a number {low} {} to below {}", self.low, self.high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_become_numbers_where_numbers_are_asked_for() {
        let legal = Legal::Float(FloatRange::POSITIVE);
        assert_eq!(legal.read(&FileValue::One(1i64.into())), Some(ParamValue::Float(1.0)));
        assert_eq!(legal.read(&FileValue::One(0i64.into())), None);
        let legal = Legal::Int { least: 1, most: 8 };
        assert_eq!(legal.read(&FileValue::One(2.0.into())), None);
    }

    #[test]
    fn a_bare_module_name_is_not_a_set_of_modules() {
        assert!(!Legal::Targets.allows(&"q_proj".into()));
        assert!(Legal::Targets.allows(&ParamValue::list(["q_proj"])));
        assert!(!Legal::Targets.allows(&ParamValue::list([""; 0])));
    }
}
