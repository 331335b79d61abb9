//! Costs of a stored study in money: by the price that an option gives, else by that of its last search.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::options::price::given;
use crate::report::{CostsInput, StudyCosts};
use crate::space::HourlyPrice;
use crate::store::{DEVICE, Store, StoreError, StudyOverview};
use peft_tune_core::predict::WorkerPrice;
use peft_tune_core::study::{Trial, TrialNumber};

/// Option of commands that show what a study cost.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(in crate::cli) struct PriceArgs {
    /// Price of an hour of one device that the trials ran on, in US dollars, such as `2.49/h`, instead of the one that the search had
    #[arg(long, value_name = "PRICE")]
    pub(super) price: Option<HourlyPrice>,
}

/// The costs of a study with these trials, where the price of its devices is known.
///
/// # Errors
/// Where the database cannot be read.
pub(in crate::cli) async fn costs_of(
    store: &Store,
    study: &StudyOverview,
    trials: &[Trial],
    price: Option<HourlyPrice>,
) -> Result<Option<StudyCosts>, StoreError> {
    if price.is_none() && study.price.is_none() {
        return Ok(None);
    }
    let recipes = store.history().recipes(study.id).await?;
    let inputs = store.inputs().of(study.id).await?;
    let is_on_cpu = inputs.iter().any(|input| input.role == DEVICE && input.path == "cpu");
    let Some(price) = worker_price(study, price, &recipes, is_on_cpu) else {
        return Ok(None);
    };
    Ok(Some(StudyCosts::new(&CostsInput {
        price: &price,
        spent_s: store.spent_times().of(study.id).await?.total_s(),
        trials,
        recipes: &recipes,
        trained: study.trained,
        target: study.target,
    })))
}

/// Price of a study's workers. A study that was searched without one says nothing of the devices that they held: those of the trial
/// that took the most, or the one processor.
fn worker_price(
    study: &StudyOverview,
    price: Option<HourlyPrice>,
    recipes: &BTreeMap<TrialNumber, Value>,
    is_on_cpu: bool,
) -> Option<WorkerPrice> {
    let Some(price) = price else {
        return study.price.clone();
    };
    let devices = match &study.price {
        Some(stored) => stored.devices,
        None if is_on_cpu => 1,
        None => {
            let devices = recipes
                .values()
                .filter_map(|recipe| recipe.pointer("/batch/devices")?.as_u64());
            devices.max().unwrap_or(1).max(1)
        }
    };
    Some(WorkerPrice {
        device: given(price),
        devices,
    })
}
