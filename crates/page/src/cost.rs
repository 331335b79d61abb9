//! Length of a whole training, and what it costs.
//!
//! | symbol | meaning |
//! |---|---|
//! | n | steps of the training |
//! | s | seconds of a step, as predicted |
//! | d | devices |
//! | p | US dollars of a device's hour |
//!
//! time = n s, cost = p d n s / 3600

use serde_json::{Value, json};

use super::question::AskedPlan;
use peft_tune_core::predict::DevicePrice;
use peft_tune_core::predict::stack::{StackPrediction, StackSetting};
use peft_tune_core::quantity::HourlyPrice;
use peft_tune_core::recipe::{BatchSettings, EpochSteps, Recipe, TrainingLength};
use peft_tune_tools::plan::SPEED_WITHIN;

/// Time and money of a training as JSON; `missing` says in words what is not known.
pub(crate) fn cost(asked: &AskedPlan, recipe: &Recipe, setting: &StackSetting, prediction: &StackPrediction) -> Value {
    let steps = match steps_of(asked, recipe, setting) {
        Ok(steps) => steps,
        Err(missing) => return json!({"missing": missing}),
    };
    let tokens = steps.count.saturating_mul(tokens_of_step(setting));
    let Some(step_s) = prediction.step_s() else {
        return json!({"steps": steps.count, "by": steps.by, "tokens": tokens, "missing": "choose a device for the time"});
    };
    let seconds = step_s * steps.count as f64;
    let device_s = seconds * setting.devices as f64;
    let price = price_of(asked);
    let usd = price.as_ref().map(|price| around(price.usd(device_s)));
    json!({
        "steps": steps.count,
        "by": steps.by,
        "tokens": tokens,
        "seconds": around(seconds),
        "device_seconds": around(device_s),
        "price": price,
        "usd": usd,
    })
}

/// A value that a speed decides, between what it is if nine of ten published speeds are right.
pub(crate) fn around(value: f64) -> [f64; 3] {
    [value / (1.0 + SPEED_WITHIN), value, value * (1.0 + SPEED_WITHIN)]
}

/// Steps, and who says so many.
struct Steps {
    count: u64,
    by: String,
}

fn steps_of(asked: &AskedPlan, recipe: &Recipe, setting: &StackSetting) -> Result<Steps, &'static str> {
    let of = |count: u64, by: String| Ok(Steps { count, by });
    if let Some(steps) = asked.steps {
        return of(steps, "as given".to_owned());
    }
    let epochs = match (asked.epochs, recipe.training.length) {
        (Some(epochs), _) | (None, TrainingLength::Epochs(epochs)) => epochs,
        (None, TrainingLength::Steps(steps)) => return of(steps, "as the file says".to_owned()),
        (None, TrainingLength::Tokens(tokens)) => {
            let steps = tokens.div_ceil(tokens_of_step(setting).max(1));
            return of(steps, format!("{tokens} tokens, as the file says"));
        }
    };
    let Some(rows) = asked.rows.filter(|rows| *rows > 0) else {
        return Err("say how many rows are trained on, or how many steps");
    };
    // Sizes have 32 bits in a browser.
    let of_step = [setting.micro_batch, setting.gradient_accumulation, setting.devices];
    let of_step = of_step.into_iter().fold(1, u64::saturating_mul);
    let batch = BatchSettings {
        micro_batch: usize::try_from(of_step).unwrap_or(usize::MAX),
        gradient_accumulation: 1,
        devices: 1,
        ..recipe.batch.clone()
    };
    let count = EpochSteps::new(rows, &batch).of_epochs(epochs);
    let times = if epochs == 1.0 { "epoch" } else { "epochs" };
    of(count, format!("{epochs} {times} of {rows} rows"))
}

/// Tokens of a step on all devices, padding counted.
fn tokens_of_step(setting: &StackSetting) -> u64 {
    setting.tokens() * setting.gradient_accumulation * setting.devices
}

fn price_of(asked: &AskedPlan) -> Option<DevicePrice> {
    let given = asked
        .usd_per_h
        .filter(|usd| *usd >= 0.0)
        .map(|usd| DevicePrice::given(HourlyPrice(usd), "as given"));
    let sheet = asked
        .device
        .as_deref()
        .and_then(|name| peft_tune_core::predict::device(name).ok());
    given.or_else(|| DevicePrice::listed(sheet?.name))
}
