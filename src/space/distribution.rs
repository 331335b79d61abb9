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
    /// One of a list. Choices that are all numbers are ordered by value; others have no order.
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
            } => Some(((high - low) / step + 1e-9).floor() as u64 + 1),
            Self::Int { low, high, step, .. } => Some(((high - low) / step) as u64 + 1),
            Self::Categorical { choices } => Some(choices.len() as u64),
        }
    }

    /// The value number `index` in ascending (or listed) order, or `None` past the last or in a continuous range.
    pub fn nth(&self, index: u64) -> Option<ParamValue> {
        if index >= self.cardinality()? {
            return None;
        }
        Some(match self {
            Self::Float { low, step, .. } => ParamValue::Float(low + index as f64 * step.unwrap_or(0.0)),
            Self::Int { low, step, .. } => ParamValue::Int(low + index as i64 * step),
            Self::Categorical { choices } => choices[index as usize].clone(),
        })
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
                high,
                scale,
                step: Some(step),
            } => {
                let raw = from_unit(
                    unit,
                    low - step / 2.0,
                    high + step / 2.0,
                    stepped_scale(*scale, low - step / 2.0),
                );
                let last = ((high - low) / step + 1e-9).floor();
                ParamValue::Float(low + ((raw - low) / step).round().clamp(0.0, last) * step)
            }
            Self::Int { low, high, scale, step } => {
                let half = *step as f64 / 2.0;
                let (edge_low, edge_high) = (*low as f64 - half, *high as f64 + half);
                let raw = from_unit(unit, edge_low, edge_high, stepped_scale(*scale, edge_low));
                let last = (high - low) / step;
                let index = ((raw - *low as f64) / *step as f64).round() as i64;
                ParamValue::Int(low + index.clamp(0, last) * step)
            }
            Self::Categorical { choices } => {
                let index = ((unit * choices.len() as f64) as usize).min(choices.len() - 1);
                choices[index].clone()
            }
        }
    }

    /// The middle of the part of the unit interval that maps to `value`, or `None` where the value is not one of this
    /// distribution's. `value_at(unit_of(v)) == v`.
    pub fn unit_of(&self, value: &ParamValue) -> Option<f64> {
        match self {
            Self::Float { low, high, scale, step } => {
                let value = value.as_f64().filter(|value| (*low..=*high).contains(value))?;
                Some(match step {
                    None => to_unit(value, *low, *high, *scale),
                    Some(step) => {
                        let (low, high) = (low - step / 2.0, high + step / 2.0);
                        to_unit(value, low, high, stepped_scale(*scale, low))
                    }
                })
            }
            Self::Int { low, high, scale, step } => {
                let value = value
                    .as_f64()
                    .filter(|value| (*low as f64..=*high as f64).contains(value))?;
                let half = *step as f64 / 2.0;
                let (low, high) = (*low as f64 - half, *high as f64 + half);
                Some(to_unit(value, low, high, stepped_scale(*scale, low)))
            }
            Self::Categorical { choices } => {
                let index = choices.iter().position(|choice| choice == value)?;
                Some((index as f64 + 0.5) / choices.len() as f64)
            }
        }
    }
}

/// A range widened by half a step may reach zero, where there is no logarithm.
fn stepped_scale(scale: Scale, low: f64) -> Scale {
    if low <= 0.0 { Scale::Linear } else { scale }
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
