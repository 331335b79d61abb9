//! The training that a study is for, which its exported recipe describes: how long it takes at a predicted speed.

use super::Forecast;
use crate::space::recipe_for;
use peft_tune_core::predict::DevicePrice;
use peft_tune_core::recipe::{Recipe, TrainingLength};
use peft_tune_core::study::Params;

/// A full training of a setting, its evaluations not counted. Where the search is to find its length, it is one epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullTraining {
    pub seconds: f64,
    /// Devices that are paid for it.
    pub devices: u64,
}

impl FullTraining {
    /// The full training of these params at a predicted speed; `None` where the speed is not known, where it is epochs of rows that
    /// are not known, and for params that make no recipe.
    pub(super) fn predicted(forecast: &Forecast, params: &Params, step_tokens: f64, tokens_per_s: f64) -> Option<Self> {
        let recipe = recipe_for(forecast.study(), params).ok()?;
        let steps = steps_of(forecast, &recipe, recipe.training.length, step_tokens)?;
        (tokens_per_s > 0.0).then(|| Self {
            seconds: steps * step_tokens / tokens_per_s,
            devices: paid_devices(forecast, &recipe),
        })
    }

    /// US dollars of all its devices together.
    pub fn usd(&self, price: &DevicePrice) -> f64 {
        price.usd(self.seconds * self.devices as f64)
    }
}

/// Devices of a recipe that are paid one by one: processes on the processor share one machine.
pub(super) fn paid_devices(forecast: &Forecast, recipe: &Recipe) -> u64 {
    match forecast.is_on_host() {
        true => 1,
        false => (recipe.batch.devices as u64).max(1),
    }
}

/// Steps of a training of a recipe that has this length; `None` where it is epochs of rows that are not known.
pub(super) fn steps_of(forecast: &Forecast, recipe: &Recipe, length: TrainingLength, step_tokens: f64) -> Option<f64> {
    Some(match length {
        TrainingLength::Steps(steps) => steps as f64,
        TrainingLength::Tokens(tokens) => tokens as f64 / step_tokens,
        TrainingLength::Epochs(epochs) => forecast.epoch_steps(recipe)?.of_epochs(epochs) as f64,
    })
}
