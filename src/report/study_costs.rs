//! What a study cost in money, and what full trainings of its settings would.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::found_length::with_found_length;
use super::money::{dollars, price_text};
use super::number::duration;
use crate::space::Target;
use peft_tune_core::objective::{TARGET_THROUGHPUT, THROUGHPUT};
use peft_tune_core::predict::{DevicePrice, WorkerPrice};
use peft_tune_core::recipe::{Recipe, TrainedRows};
use peft_tune_core::study::{Trial, TrialNumber};

/// What the costs of a study follow from.
#[derive(Clone, Copy, Debug)]
pub struct CostsInput<'a> {
    pub price: &'a WorkerPrice,
    /// Seconds of everything that the study's searches ran.
    pub spent_s: f64,
    pub trials: &'a [Trial],
    /// Recipes of the trials, as they are stored.
    pub recipes: &'a BTreeMap<TrialNumber, Value>,
    /// Rows that full trainings go over, where they were recorded.
    pub trained: Option<TrainedRows>,
    /// The stack that the study is for, where it is another.
    pub target: Option<Target>,
}

/// Costs of a study in US dollars.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyCosts {
    /// Price of the devices that the trials ran on.
    pub price: DevicePrice,
    /// Cost of everything that the study's searches ran.
    pub search_usd: f64,
    /// Price of the devices that full trainings run on: the listed one of a target device, else that of the trials'.
    pub training_price: Option<DevicePrice>,
    /// Full trainings by trial, where their lengths and speeds are known.
    pub full_trainings: BTreeMap<TrialNumber, TrainingCost>,
}

/// The training that a trial's recipe describes, its evaluations not counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainingCost {
    pub tokens: u64,
    pub seconds: f64,
    pub devices: u64,
    pub usd: f64,
}

impl StudyCosts {
    /// The costs of a study.
    pub fn new(input: &CostsInput<'_>) -> Self {
        let training_price = match input.target {
            None => Some(input.price.device.clone()),
            Some(target) => target.device.and_then(|device| DevicePrice::listed(device.sheet.name)),
        };
        let costs = training_price.as_ref().map(|price| {
            let one = |trial: &Trial| Some((trial.number, training_cost(input, price, trial)?));
            input.trials.iter().filter_map(one).collect()
        });
        Self {
            price: input.price.device.clone(),
            search_usd: input.price.usd(input.spent_s),
            full_trainings: costs.unwrap_or_default(),
            training_price,
        }
    }

    /// The search's cost: `$1.83, at $2.49 an hour of a device (the study file)`.
    pub fn search_text(&self) -> String {
        format!("{}, {}", dollars(self.search_usd), price_text(&self.price))
    }

    /// US dollars of a trial's full training, where they are known.
    pub fn training_usd(&self, trial: TrialNumber) -> Option<f64> {
        self.full_trainings.get(&trial).map(|cost| cost.usd)
    }

    /// The cost of a trial's full training: `$3.10 for 1h 15m`, with the price where it is not that of the search.
    pub fn training_text(&self, trial: TrialNumber) -> Option<String> {
        let cost = self.full_trainings.get(&trial)?;
        let devices = match cost.devices {
            1 => String::new(),
            devices => format!(" on {devices} devices"),
        };
        let other = self.training_price.as_ref().filter(|price| **price != self.price);
        let other = other.map_or_else(String::new, |price| format!(", {}", price_text(price)));
        let (usd, time) = (dollars(cost.usd), duration(cost.seconds));
        Some(format!("{usd} for {time}{devices}{other}"))
    }
}

/// The cost of a trial's full training on devices of this price; `None` where its length in tokens or its speed is not known.
fn training_cost(input: &CostsInput<'_>, price: &DevicePrice, trial: &Trial) -> Option<TrainingCost> {
    let metric = match input.target {
        None => THROUGHPUT,
        Some(_) => TARGET_THROUGHPUT,
    };
    let speed = trial.state.metrics()?.value(metric).filter(|speed| *speed > 0.0)?;
    let recipe = input.recipes.get(&trial.number)?.clone();
    let recipe: Recipe = serde_json::from_value(with_found_length(recipe, input.trials)).ok()?;
    let trained = input.trained.unwrap_or_default();
    let tokens = recipe.training.length.tokens(&recipe.batch, trained);
    let devices = (recipe.batch.devices as u64).max(1);
    let devices = match input.target {
        // Processes on a processor share it.
        None => devices.min(input.price.devices),
        Some(_) => devices,
    };
    let seconds = tokens as f64 / speed;
    (tokens > 0).then(|| TrainingCost {
        tokens,
        seconds,
        devices,
        usd: price.usd(seconds * devices as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{DataSettings, TrainingLength};
    use peft_tune_core::study::{Params, TrialState};

    fn costs(length: TrainingLength, devices: usize, target: Option<Target>) -> StudyCosts {
        let mut recipe = Recipe::new("m", DataSettings::default());
        recipe.training.length = length;
        (recipe.batch.micro_batch, recipe.batch.gradient_accumulation) = (4, 1);
        recipe.batch.devices = devices;
        let metrics = [(THROUGHPUT, 100.0), (TARGET_THROUGHPUT, 1000.0)].into();
        let trial = Trial {
            number: TrialNumber(3),
            params: Params::new(),
            state: TrialState::Complete { metrics },
        };
        StudyCosts::new(&CostsInput {
            price: &WorkerPrice {
                device: DevicePrice {
                    usd_per_h: 3.6,
                    source: "--price".to_owned(),
                },
                devices: 2,
            },
            spent_s: 500.0,
            trials: &[trial],
            recipes: &[(TrialNumber(3), serde_json::to_value(recipe).unwrap())].into(),
            trained: Some(TrainedRows {
                rows: 100,
                tokens: 20_000,
            }),
            target,
        })
    }

    #[test]
    fn a_full_training_costs_its_tokens_at_the_measured_speed() {
        let of = |length| costs(length, 1, None).full_trainings[&TrialNumber(3)];
        let epochs = of(TrainingLength::Epochs(3.0));
        assert_eq!((epochs.tokens, epochs.seconds), (60_000, 600.0));
        assert!((epochs.usd - 0.6).abs() < 1e-9);
        assert_eq!(of(TrainingLength::Tokens(1000)).tokens, 1000);
        assert_eq!(of(TrainingLength::Steps(50)).tokens, 40_000);
    }

    #[test]
    fn all_devices_are_paid_and_the_search_holds_them() {
        let costs = costs(TrainingLength::Epochs(3.0), 2, None);
        assert!((costs.search_usd - 1.0).abs() < 1e-9);
        assert_eq!(costs.search_text(), "$1.00, at $3.60 an hour of a device (--price)");
        assert_eq!(
            costs.training_text(TrialNumber(3)).unwrap(),
            "$1.20 for 10m 00s on 2 devices"
        );
        assert_eq!(costs.training_text(TrialNumber(4)), None);
        let usd = costs.training_usd(TrialNumber(3));
        assert!(usd.is_some_and(|usd| (usd - 1.2).abs() < 1e-9), "{usd:?}");
        assert_eq!(costs.training_usd(TrialNumber(4)), None);
    }

    #[test]
    fn a_target_has_the_listed_price_of_its_device_or_none() {
        let target = |name: &str| Target {
            stack: crate::tools::Tool::Trl,
            device: Some(peft_tune_core::predict::stack::StackDevice {
                sheet: peft_tune_core::predict::device(name).unwrap(),
            }),
        };
        let listed = costs(TrainingLength::Tokens(2_000_000), 1, Some(target("H200")));
        let text = listed.training_text(TrialNumber(3)).unwrap();
        assert_eq!(
            text,
            "$2.55 for 33m 20s, at $4.59 an hour of a device (RunPod's price as reported by others on 2026-10-07, \
             not checked; yours may differ)"
        );
        let unlisted = costs(TrainingLength::Tokens(1_000_000), 1, Some(target("L40S")));
        assert_eq!(unlisted.training_text(TrialNumber(3)), None);
    }
}
