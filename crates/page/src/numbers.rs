//! [`Numbers`]: numbers that are written beside a setting.

use super::error::PageError;
use super::question::AskedPlan;
use peft_tune_core::quantity::HourlyPrice;

/// Largest count, above what any training has; floats hold all whole numbers up to it.
const MOST: f64 = 1e15;
/// Most epochs.
const MOST_EPOCHS: f64 = 1e6;

/// Numbers of a question, as far as it has them, each within its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Numbers {
    /// Devices that share the work.
    pub devices: Option<u64>,
    /// Rows that are trained on.
    pub rows: Option<u64>,
    /// Epochs, in place of the length that the file says.
    pub epochs: Option<f64>,
    /// Steps, in place of the length that the file says.
    pub steps: Option<u64>,
    /// Price of a device's hour, in place of the listed one.
    pub price: Option<HourlyPrice>,
}

impl Numbers {
    /// The numbers of a question.
    ///
    /// # Errors
    /// A number that is out of bounds, by its name.
    pub(crate) fn of(asked: &AskedPlan) -> Result<Self, PageError> {
        Ok(Self {
            devices: whole("devices", asked.devices)?,
            rows: whole("rows", asked.rows)?,
            epochs: epochs(asked.epochs)?,
            steps: whole("steps", asked.steps)?,
            price: asked
                .usd_per_h
                .map(|usd| usd.to_string().parse::<HourlyPrice>())
                .transpose()?,
        })
    }
}

fn whole(name: &str, value: Option<f64>) -> Result<Option<u64>, PageError> {
    let is_whole = |value: f64| value.fract() == 0.0 && (1.0..=MOST).contains(&value);
    match value {
        Some(value) if !is_whole(value) => Err(wrong(name, value, format!("a whole number from 1 to {MOST}"))),
        value => Ok(value.map(|value| value as u64)),
    }
}

fn epochs(value: Option<f64>) -> Result<Option<f64>, PageError> {
    let is_legal = |value: f64| value > 0.0 && value <= MOST_EPOCHS;
    match value {
        Some(value) if !is_legal(value) => {
            Err(wrong("epochs", value, format!("a number above 0, up to {MOST_EPOCHS}")))
        }
        value => Ok(value),
    }
}

fn wrong(name: &str, value: f64, legal: String) -> PageError {
    let is_long = value.abs() > MOST;
    PageError::Setting {
        name: name.to_owned(),
        value: if is_long {
            format!("{value:e}")
        } else {
            value.to_string()
        },
        legal,
    }
}
