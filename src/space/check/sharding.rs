//! Whether weights can be shared out on the devices, and with the adapters, that a file allows.

use super::Context;
use super::parameter::Parameters;
use super::precision_schedule::values_of;
use crate::space::SpaceError;
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{BadSharding, Recipe, Sharding};
use peft_tune_core::space::Distribution;
use peft_tune_core::study::{ParamValue, TrialPlan};

const NAME: &str = "sharding";
/// The settings that can forbid it.
const READ_WITH_IT: [&str; 4] = ["devices", "method", "dora", "init"];

impl Context<'_> {
    /// Refuses `sharding` in a study file where some trial cannot follow it.
    pub(super) fn check_shardings(
        &self,
        parameters: &Parameters,
        base: &Recipe,
        plan: &TrialPlan,
    ) -> Result<(), SpaceError> {
        let full = ParamValue::from(Sharding::Full.name());
        if !values_of(parameters, NAME).contains(&full) {
            return Ok(());
        }
        let rejected = |message: String| SpaceError::Rejected {
            at: self.document.value(&["space", NAME]),
            message,
        };
        if plan.train.as_ref().is_some_and(|train| train.accuracy.score.is_some()) {
            return Err(rejected(
                "`sharding: full` does not go with `score` so far, since ranks would end their answers at different times; leave \
                 one of the two out"
                    .to_owned(),
            ));
        }
        if plan.measure.as_ref().is_some_and(|measure| measure.serve.is_some()) {
            return Err(rejected(
                "`sharding: full` does not go with `serve` and `serve_ms_per_token` so far, since no rank has a whole model to serve; \
                 leave one of the two out"
                    .to_owned(),
            ));
        }
        let mut recipe = base.clone();
        recipe.batch.sharding = Sharding::Full;
        // Where there is a choice of devices, one is enough for those that are not about devices.
        let values = least_devices(parameters);
        recipe.batch.devices = values.map_or(base.batch.devices, |least| least as usize);
        self.is_sound(&recipe).map_err(rejected)?;
        recipe.batch.devices = recipe.batch.devices.max(2);
        for name in READ_WITH_IT.into_iter().skip(1) {
            for value in values_of(parameters, name) {
                let mut one = recipe.clone();
                let is_set = setting(name).is_some_and(|row| (row.set)(&mut one, &value).is_ok());
                if is_set && !self.is_excluded(parameters, name, &value) {
                    self.is_sound(&one).map_err(rejected)?;
                }
            }
        }
        Ok(())
    }

    /// Refuses the sharing of a recipe file where it cannot be followed.
    pub(super) fn check_shared_out(&self, recipe: &Recipe) -> Result<(), SpaceError> {
        recipe.check_sharding().map_err(|error| SpaceError::Rejected {
            at: self.document.value(&["batch", NAME]),
            message: error.to_string(),
        })
    }

    fn is_sound(&self, recipe: &Recipe) -> Result<(), String> {
        recipe.check_sharding().map_err(|error| match error {
            BadSharding::OneDevice => format!("{error}; or add `when: {{devices: [2]}}` to it"),
            _ => error.to_string(),
        })
    }

    /// Whether the condition of `sharding` keeps it from meeting this value of another setting.
    fn is_excluded(&self, parameters: &Parameters, name: &str, value: &ParamValue) -> bool {
        let mut all = parameters.space.parameters.iter();
        let condition = all
            .find(|parameter| parameter.name == NAME)
            .and_then(|parameter| parameter.condition.as_ref());
        condition.is_some_and(|condition| condition.parameter == name && !condition.values.contains(value))
    }
}

/// The fewest devices that `sharding: full` can meet; `None` where the file says nothing of devices.
fn least_devices(parameters: &Parameters) -> Option<i64> {
    let mut all = parameters.space.parameters.iter();
    let condition = all
        .find(|parameter| parameter.name == NAME)
        .and_then(|parameter| parameter.condition.as_ref())
        .filter(|condition| condition.parameter == "devices");
    let whole = |value: &ParamValue| match value {
        ParamValue::Int(value) => Some(*value),
        _ => None,
    };
    if let Some(condition) = condition {
        return condition.values.iter().filter_map(whole).min();
    }
    if let Some(fixed) = parameters.fixed.get("devices") {
        return whole(fixed);
    }
    let mut all = parameters.space.parameters.iter();
    let devices = all.find(|parameter| parameter.name == "devices")?;
    match &devices.distribution {
        Distribution::Categorical { choices } => choices.iter().filter_map(whole).min(),
        Distribution::Int { low, .. } => Some(*low),
        _ => None,
    }
}
