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

use super::numbers::Numbers;
use peft_tune_core::predict::DevicePrice;
use peft_tune_core::predict::stack::{StackDevice, StackSetting};
use peft_tune_core::recipe::{BatchSettings, EpochSteps, Recipe, TrainingLength};
use peft_tune_tools::plan::{Predicted, SPEED_WITHIN};

/// Time and money of a training as JSON; `missing` says in words what is not known.
pub(crate) fn cost(numbers: &Numbers, recipe: &Recipe, predicted: &Predicted) -> Value {
    let setting = &predicted.setting;
    let steps = match steps_of(numbers, recipe, setting) {
        Ok(steps) => steps,
        Err(missing) => return json!({"missing": missing}),
    };
    let tokens = steps.count.saturating_mul(tokens_of_step(setting));
    let Some(step_s) = predicted.prediction.step_s() else {
        return json!({"steps": steps.count, "by": steps.by, "tokens": tokens, "missing": "choose a device for the time"});
    };
    let seconds = step_s * steps.count as f64;
    let device_s = seconds * setting.devices as f64;
    let price = price_of(numbers, predicted.device);
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

fn steps_of(numbers: &Numbers, recipe: &Recipe, setting: &StackSetting) -> Result<Steps, &'static str> {
    let of = |count: u64, by: String| Ok(Steps { count, by });
    if let Some(steps) = numbers.steps {
        return of(steps, "as given".to_owned());
    }
    let epochs = match (numbers.epochs, recipe.training.length) {
        (Some(epochs), _) | (None, TrainingLength::Epochs(epochs)) => epochs,
        (None, TrainingLength::Steps(steps)) => return of(steps, "as the file says".to_owned()),
        (None, TrainingLength::Tokens(tokens)) => {
            let steps = tokens.div_ceil(tokens_of_step(setting).max(1));
            return of(steps, format!("{tokens} tokens, as the file says"));
        }
    };
    let Some(rows) = numbers.rows else {
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
    // Several documents are one of these: whoever counts documents has fewer.
    let packed = if recipe.batch.packing { "packed " } else { "" };
    of(count, format!("{epochs} {times} of {rows} {packed}rows"))
}

/// Tokens of a step on all devices, padding counted.
fn tokens_of_step(setting: &StackSetting) -> u64 {
    setting.tokens() * setting.gradient_accumulation * setting.devices
}

fn price_of(numbers: &Numbers, device: Option<StackDevice>) -> Option<DevicePrice> {
    let given = numbers.price.map(|price| DevicePrice::given(price, "as given"));
    given.or_else(|| DevicePrice::listed(device?.sheet.name))
}
