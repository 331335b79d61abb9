//! How one parameter is sampled.

use serde::{Deserialize, Serialize};

use crate::study::ParamValue;

/// How a range is divided: evenly in the value or in its logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    #[default]
    Linear,
    Log,
}

/// Values that are compared to find the nearest one.
const MOST_COMPARED: u64 = 1 << 16;

/// The values a parameter may take. Bounds are included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Distribution {
    Float {
        low: f64,
        high: f64,
        scale: Scale,
        /// Distance of neighbours, counted from `low`; any value in the range where absent.
        step: Option<f64>,
    },
    Int {
        low: i64,
        high: i64,
        scale: Scale,
        step: i64,
    },
    /// Choice from a list, which is never empty. Choices that are all numbers are ordered by value; others have no
    /// order.
    Categorical { choices: Vec<ParamValue> },
}

impl Distribution {
    /// Number of different values, or `None` for a continuous range.
    pub fn cardinality(&self) -> Option<u64> {
        match self {
            Self::Float {
                step: None, low, high, ..
            } => (low == high).then_some(1),
            Self::Float {
                step: Some(step),
                low,
                high,
                ..
            } => Some(((high - low) / step + STEP_SLACK).floor() as u64 + 1),
            Self::Int { low, high, step, .. } => Some(high.abs_diff(*low) / step.unsigned_abs() + 1),
            Self::Categorical { choices } => Some(choices.len() as u64),
        }
    }

    /// The value number `index` in ascending (or listed) order, or `None` past the last or in a continuous range.
    pub fn nth(&self, index: u64) -> Option<ParamValue> {
        if index >= self.cardinality()? {
            return None;
        }
        Some(match self {
            Self::Float { low, step, .. } => ParamValue::Float(stepped(*low, index, step.unwrap_or(0.0))),
            Self::Int { low, step, .. } => ParamValue::Int(low + index as i64 * step),
            Self::Categorical { choices } => choices[index as usize].clone(),
        })
    }

    /// The number of `value` in the order of [`Distribution::nth`], or `None` where it is not one of this
    /// distribution's or the range is continuous.
    pub fn index_of(&self, value: &ParamValue) -> Option<u64> {
        let nearest = match self {
            Self::Float { low, step, .. } => (value.as_f64()? - low) / step.unwrap_or(1.0),
            Self::Int { low, step, .. } => (value.as_f64()? - *low as f64) / *step as f64,
            Self::Categorical { choices } => {
                return choices
                    .iter()
                    .position(|choice| choice == value)
                    .map(|index| index as u64);
            }
        };
        if nearest < -0.5 {
            return None;
        }
        let index = nearest.round() as u64;
        let member = self.nth(index)?.as_f64()?;
        let given = value.as_f64()?;
        ((member - given).abs() <= 1e-9 * member.abs().max(given.abs())).then_some(index)
    }

    /// Whether `value` is one that this distribution can give.
    pub fn contains(&self, value: &ParamValue) -> bool {
        match self {
            Self::Float {
                low, high, step: None, ..
            } => value.as_f64().is_some_and(|value| (*low..=*high).contains(&value)),
            _ => self.index_of(value).is_some(),
        }
    }

    /// The value of this distribution that is nearest to `value`: numbers by their ratio where both are above 0, text only
    /// if it is one of the choices. `None` where nothing is near, or there are too many values to look at.
    pub fn nearest(&self, value: &ParamValue) -> Option<ParamValue> {
        if self.contains(value) {
            return match self {
                Self::Float { step: None, .. } => value.as_f64().map(ParamValue::Float),
                _ => self.nth(self.index_of(value)?),
            };
        }
        let given = value.as_f64()?;
        if let Self::Float {
            low, high, step: None, ..
        } = self
        {
            return Some(ParamValue::Float(given.clamp(*low, *high)));
        }
        let distance = |other: f64| match given > 0.0 && other > 0.0 {
            true => (other / given).ln().abs(),
            false => (other - given).abs(),
        };
        let values =
            (0..self.cardinality().filter(|count| *count <= MOST_COMPARED)?).filter_map(|index| self.nth(index));
        let numbers = values.filter_map(|value| Some((distance(value.as_f64()?), value)));
        numbers.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, value)| value)
    }

    /// Whether the values are ordered numbers.
    pub fn is_ordered(&self) -> bool {
        match self {
            Self::Float { .. } | Self::Int { .. } => true,
            Self::Categorical { choices } => choices.iter().all(|choice| choice.as_f64().is_some()),
        }
    }

    /// Maps a point of the unit interval to a value; equal parts of the interval go to equal parts of the range (in
    /// its scale) or to each choice. Points outside [0, 1] are moved to its ends.
    pub fn value_at(&self, unit: f64) -> ParamValue {
        let unit = unit.clamp(0.0, 1.0);
        match self {
            Self::Float {
                low,
                high,
                scale,
                step: None,
            } => ParamValue::Float(from_unit(unit, *low, *high, *scale).clamp(*low, *high)),
            Self::Float {
                low,
                scale,
                step: Some(step),
                ..
            } => {
                let (last, edges) = self.widened(*low, *step, *scale);
                let raw = from_unit(unit, edges.low, edges.high, edges.scale);
                let index = ((raw - low) / step).round().clamp(0.0, last as f64) as u64;
                ParamValue::Float(stepped(*low, index, *step))
            }
            Self::Int { low, scale, step, .. } => {
                let (last, edges) = self.widened(*low as f64, *step as f64, *scale);
                let raw = from_unit(unit, edges.low, edges.high, edges.scale);
                let index = ((raw - *low as f64) / *step as f64).round().clamp(0.0, last as f64);
                ParamValue::Int(low + index as i64 * step)
            }
            Self::Categorical { choices } => {
                let index = ((unit * choices.len() as f64) as usize).min(choices.len() - 1);
                choices[index].clone()
            }
        }
    }

    /// A point of the part of the unit interval that maps to `value`, or `None` where the value is not one of this
    /// distribution's. `value_at(unit_of(v)) == v`, up to rounding in a continuous range.
    pub fn unit_of(&self, value: &ParamValue) -> Option<f64> {
        match self {
            Self::Float {
                low,
                high,
                scale,
                step: None,
            } => {
                let value = value.as_f64().filter(|value| (*low..=*high).contains(value))?;
                Some(to_unit(value, *low, *high, *scale))
            }
            Self::Float {
                low,
                scale,
                step: Some(step),
                ..
            } => {
                let index = self.index_of(value)?;
                let (_, edges) = self.widened(*low, *step, *scale);
                Some(to_unit(stepped(*low, index, *step), edges.low, edges.high, edges.scale))
            }
            Self::Int { low, scale, step, .. } => {
                let index = self.index_of(value)?;
                let (_, edges) = self.widened(*low as f64, *step as f64, *scale);
                Some(to_unit(
                    (low + index as i64 * step) as f64,
                    edges.low,
                    edges.high,
                    edges.scale,
                ))
            }
            Self::Categorical { choices } => Some((self.index_of(value)? as f64 + 0.5) / choices.len() as f64),
        }
    }

    /// The last index of a stepped range, and the range widened by half a step on either side, so that the first and
    /// the last value get as much of the interval as the others.
    fn widened(&self, low: f64, step: f64, scale: Scale) -> (u64, Edges) {
        let last = self.cardinality().map_or(0, |size| size - 1);
        let edges = Edges {
            low: low - step / 2.0,
            high: low + (last as f64 + 0.5) * step,
            // A range widened by half a step may reach zero, where there is no logarithm.
            scale: if low - step / 2.0 <= 0.0 { Scale::Linear } else { scale },
        };
        (last, edges)
    }
}

/// Tolerance, in steps, within which the upper bound counts as lying on the grid.
const STEP_SLACK: f64 = 1e-9;

struct Edges {
    low: f64,
    high: f64,
    scale: Scale,
}

/// `low + index * step`, rounded to 12 decimals of the larger operand so that 0.8 + 3 x 0.05 is 0.95.
fn stepped(low: f64, index: u64, step: f64) -> f64 {
    let raw = low + index as f64 * step;
    let magnitude = low.abs().max(raw.abs()).max(step.abs());
    if magnitude == 0.0 || !raw.is_finite() {
        return raw;
    }
    let decimals = (12 - magnitude.log10().floor() as i32).clamp(0, 300) as usize;
    // Printing rounds correctly in decimal; scaling by a power of ten would add errors of its own.
    format!("{raw:.decimals$}").parse().unwrap_or(raw)
}

fn from_unit(unit: f64, low: f64, high: f64, scale: Scale) -> f64 {
    match scale {
        Scale::Linear => low + unit * (high - low),
        Scale::Log => (low.ln() + unit * (high.ln() - low.ln())).exp(),
    }
}

fn to_unit(value: f64, low: f64, high: f64, scale: Scale) -> f64 {
    if high <= low {
        return 0.5;
    }
    match scale {
        Scale::Linear => (value - low) / (high - low),
        Scale::Log => (value.ln() - low.ln()) / (high.ln() - low.ln()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scale() -> impl Strategy<Value = Scale> {
        prop_oneof![Just(Scale::Linear), Just(Scale::Log)]
    }

    fn finite() -> impl Strategy<Value = Distribution> {
        let stepped_float = (1e-6..1e3f64, 1e-4..10.0f64, 0..200u32, 0.0..0.9f64, scale()).prop_map(
            |(low, step, count, beyond, scale)| Distribution::Float {
                low,
                high: low + step * (f64::from(count) + beyond),
                scale,
                step: Some(step),
            },
        );
        let int = (1..500i64, 0..3000i64, 1..20i64, scale()).prop_map(|(low, width, step, scale)| Distribution::Int {
            low,
            high: low + width,
            scale,
            step,
        });
        let negative = (-50..50i64, 0..80i64, 1..7i64).prop_map(|(low, width, step)| Distribution::Int {
            low,
            high: low + width,
            scale: Scale::Linear,
            step,
        });
        let categorical =
            prop::collection::btree_set("[a-z]{1,4}", 1..12).prop_map(|names| Distribution::Categorical {
                choices: names.iter().map(|name| ParamValue::from(name.as_str())).collect(),
            });
        prop_oneof![stepped_float, int, negative, categorical]
    }

    proptest! {
        #[test]
        fn every_value_of_a_finite_distribution_comes_back_from_its_point(distribution in finite()) {
            let size = distribution.cardinality().unwrap();
            let mut seen = Vec::new();
            for index in 0..size {
                let value = distribution.nth(index).unwrap();
                let unit = distribution.unit_of(&value).unwrap();
                prop_assert!((0.0..=1.0).contains(&unit));
                prop_assert_eq!(&distribution.value_at(unit), &value);
                prop_assert_eq!(distribution.index_of(&value), Some(index));
                prop_assert!(!seen.contains(&value), "{} twice", value);
                seen.push(value);
            }
            prop_assert_eq!(distribution.nth(size), None);
        }

        #[test]
        fn every_point_of_a_finite_distribution_is_one_of_its_values(distribution in finite(), unit in -0.5..1.5f64) {
            let value = distribution.value_at(unit);
            prop_assert!(distribution.contains(&value));
            let again = distribution.value_at(distribution.unit_of(&value).unwrap());
            prop_assert_eq!(again, value);
        }

        #[test]
        fn a_continuous_value_comes_back_up_to_rounding(
            low in 1e-6..1.0f64, width in 1e-6..10.0f64, unit in 0.0..=1.0f64, scale in scale()
        ) {
            let distribution = Distribution::Float { low, high: low + width, scale, step: None };
            let value = distribution.value_at(unit).as_f64().unwrap();
            let again = distribution.value_at(distribution.unit_of(&value.into()).unwrap()).as_f64().unwrap();
            prop_assert!((again - value).abs() <= 1e-12 * value.abs());
            prop_assert!((low..=low + width).contains(&value));
        }

        #[test]
        fn values_rise_with_the_point(distribution in finite(), one in 0.0..=1.0f64, other in 0.0..=1.0f64) {
            prop_assume!(distribution.is_ordered());
            let (below, above) = (one.min(other), one.max(other));
            prop_assert!(distribution.value_at(below).as_f64() <= distribution.value_at(above).as_f64());
        }
    }

    #[test]
    fn stepped_values_are_short_decimals() {
        let distribution = Distribution::Float {
            low: 0.8,
            high: 0.99,
            scale: Scale::Linear,
            step: Some(0.05),
        };
        let values: Vec<_> = (0..4)
            .map(|index| distribution.nth(index).unwrap().to_string())
            .collect();
        assert_eq!(values, ["0.8", "0.85", "0.9", "0.95"]);
        assert_eq!(distribution.cardinality(), Some(4));
    }

    #[test]
    fn values_between_the_steps_are_not_in_the_distribution() {
        let distribution = Distribution::Int {
            low: 2,
            high: 9,
            scale: Scale::Linear,
            step: 3,
        };
        assert_eq!(distribution.unit_of(&ParamValue::Int(4)), None);
        assert_eq!(distribution.unit_of(&ParamValue::Float(2.5)), None);
        assert_eq!(distribution.unit_of(&ParamValue::Int(9)), None);
        assert_eq!(distribution.cardinality(), Some(3));
    }

    #[test]
    fn each_value_of_a_linear_range_gets_the_same_share_of_the_interval() {
        let distribution = Distribution::Int {
            low: 0,
            high: 7,
            scale: Scale::Linear,
            step: 2,
        };
        let mut counts = [0; 4];
        for point in 0..4000 {
            let value = distribution.value_at((f64::from(point) + 0.5) / 4000.0);
            counts[distribution.index_of(&value).unwrap() as usize] += 1;
        }
        assert_eq!(counts, [1000; 4]);
    }
}
