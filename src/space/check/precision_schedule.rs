//! Whether a schedule of the precision goes with the precisions that a file allows, and with the length of its trainings.

use super::Context;
use super::parameter::Parameters;
use crate::space::SpaceError;
use peft_tune_core::recipe::{Precision, PrecisionSchedule, Recipe, TrainingLength};
use peft_tune_core::space::Distribution;
use peft_tune_core::study::{ParamValue, TrialPlan};

const NAME: &str = "precision_schedule";

impl Context<'_> {
    /// Refuses a schedule in a study file that some trial cannot follow.
    pub(super) fn check_schedules(
        &self,
        parameters: &Parameters,
        base: &Recipe,
        plan: &TrialPlan,
    ) -> Result<(), SpaceError> {
        let schedules = values_of(parameters, NAME);
        let schedules = schedules.iter().filter_map(|value| match value {
            ParamValue::Text(name) => PrecisionSchedule::from_name(name),
            _ => None,
        });
        let precisions = self.precisions_under(parameters, base);
        let lengths = [
            plan.train.as_ref().map(|train| train.length),
            Some(base.training.length),
        ];
        for schedule in schedules {
            for precision in &precisions {
                let mut recipe = base.clone();
                (recipe.precision, recipe.precision_schedule) = (*precision, schedule);
                let rejected = |message: String| SpaceError::Rejected {
                    at: self.document.value(&["space", NAME]),
                    message,
                };
                schedule.check(*precision).map_err(|error| match precisions.len() {
                    1 => rejected(error.to_string()),
                    _ => rejected(format!("{error}; or add `when: {{precision: [bf16, fp16]}}` to it")),
                })?;
                for length in lengths.into_iter().flatten() {
                    let checked = recipe.check_precision_schedule(steps_of(length));
                    checked.map_err(|error| rejected(error.to_string()))?;
                }
            }
        }
        Ok(())
    }

    /// Refuses the schedule of a recipe file where it cannot be followed.
    pub(super) fn check_schedule(&self, recipe: &Recipe) -> Result<(), SpaceError> {
        let checked = recipe.check_precision_schedule(steps_of(recipe.training.length));
        checked.map_err(|error| SpaceError::Rejected {
            at: self.document.value(&[NAME]),
            message: error.to_string(),
        })
    }

    /// The precisions that a schedule can meet.
    fn precisions_under(&self, parameters: &Parameters, base: &Recipe) -> Vec<Precision> {
        let schedule = parameters
            .space
            .parameters
            .iter()
            .find(|parameter| parameter.name == NAME);
        let condition = schedule.and_then(|schedule| schedule.condition.as_ref());
        let values = match condition.filter(|condition| condition.parameter == "precision") {
            Some(condition) => condition.values.clone(),
            None => values_of(parameters, "precision"),
        };
        let named = values.iter().filter_map(|value| match value {
            ParamValue::Text(name) => Precision::ALL
                .into_iter()
                .find(|precision| precision.name() == name.as_str()),
            _ => None,
        });
        let precisions: Vec<Precision> = named.collect();
        match precisions.is_empty() {
            true => vec![base.precision],
            false => precisions,
        }
    }
}

/// The values that a parameter may have; none where it is not given.
pub(super) fn values_of(parameters: &Parameters, name: &str) -> Vec<ParamValue> {
    if let Some(value) = parameters.fixed.get(name) {
        return vec![value.clone()];
    }
    let mut all = parameters.space.parameters.iter();
    match all
        .find(|parameter| parameter.name == name)
        .map(|parameter| &parameter.distribution)
    {
        Some(Distribution::Categorical { choices }) => choices.clone(),
        _ => Vec::new(),
    }
}

/// Steps of a training, where they are known without its data.
fn steps_of(length: TrainingLength) -> Option<u64> {
    match length {
        TrainingLength::Steps(steps) => Some(steps),
        TrainingLength::Tokens(_) | TrainingLength::Epochs(_) => None,
    }
}
