//! Values that a parameter may take at all.

use std::fmt;

use crate::recipe::{Checkpointing, ParamValue, PrecisionSchedule, TargetPreset};

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
    /// Name from this list.
    Choice(&'static [&'static str]),
    /// `none`, `every_N`, `full` or `offload`.
    Checkpointing,
    /// `none`, `fp32_N` or `adaptive_N`.
    PrecisionSchedule,
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

impl FloatRange {
    /// Range above zero.
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

    /// Range from `low` to `high`, both included.
    pub const fn between(low: f64, high: f64) -> Self {
        Self {
            low,
            low_included: true,
            high,
            high_included: true,
        }
    }

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
            (Self::PrecisionSchedule, ParamValue::Text(name)) => PrecisionSchedule::from_name(name).is_some(),
            (Self::Targets, ParamValue::Text(name)) => TargetPreset::NAMES.contains(&name.as_str()),
            (Self::Targets, ParamValue::List(names)) => !names.is_empty(),
            _ => false,
        }
    }

    /// The value that says nothing: false, none, zero, the first choice. `None` where each value says something.
    pub fn off(&self) -> Option<ParamValue> {
        match self {
            Self::Int { least, .. } => Some((*least).into()),
            Self::Float(range) => range.low_included.then_some(range.low.into()),
            Self::Bool => Some(false.into()),
            Self::Choice(names) => names.first().map(|name| (*name).into()),
            Self::FloatOrNone(_) | Self::Checkpointing | Self::PrecisionSchedule => Some("none".into()),
            Self::Targets => None,
        }
    }

    /// Whether a range (`low`, `high`) makes sense.
    pub fn is_numeric(&self) -> bool {
        matches!(self, Self::Int { .. } | Self::Float(_) | Self::FloatOrNone(_))
    }
}

/// Writes the values in words that fit after "write".
impl fmt::Display for Legal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int { least, most } => write!(formatter, "a whole number from {least} to {most}"),
            Self::Float(range) => range.fmt(formatter),
            Self::FloatOrNone(range) => write!(formatter, "{range}, or none"),
            Self::Bool => formatter.write_str("true or false"),
            Self::Choice(names) => write!(formatter, "one of {}", names.join(", ")),
            Self::Checkpointing => formatter.write_str("none, every_N (every_2, every_3, ...), full or offload"),
            Self::PrecisionSchedule => formatter.write_str(PrecisionSchedule::LEGAL),
            Self::Targets => write!(
                formatter,
                "one of {}, or a list of module names (one set is `[[q_proj, v_proj]]`)",
                TargetPreset::NAMES.join(", ")
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
    fn a_bare_module_name_is_not_a_set_of_modules() {
        assert!(!Legal::Targets.allows(&"q_proj".into()));
        assert!(Legal::Targets.allows(&ParamValue::list(["q_proj"])));
        assert!(!Legal::Targets.allows(&ParamValue::list([""; 0])));
    }
}
