//! Whether updates can be where a file has them, with the optimizers that it allows.

use super::Context;
use super::parameter::Parameters;
use super::precision_schedule::values_of;
use crate::space::SpaceError;
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{OptimizerOffload, Recipe};
use peft_tune_core::study::ParamValue;

const NAME: &str = "optimizer_offload";
/// The setting that can forbid it.
const OPTIMIZER: &str = "optimizer";

impl Context<'_> {
    /// Refuses `optimizer_offload: host` in a study file that lets it meet an optimizer whose states are paged.
    pub(super) fn check_offloads(&self, parameters: &Parameters, base: &Recipe) -> Result<(), SpaceError> {
        let host = ParamValue::from(OptimizerOffload::Host.name());
        let is_met = values_of(parameters, NAME).contains(&host) || !base.optimizer.offload.is_none();
        if !is_met {
            return Ok(());
        }
        let mut recipe = base.clone();
        recipe.optimizer.offload = OptimizerOffload::Host;
        let mut optimizers = values_of(parameters, OPTIMIZER);
        if optimizers.is_empty() {
            optimizers.push(base.optimizer.kind.name().into());
        }
        for optimizer in optimizers {
            let is_set = setting(OPTIMIZER).is_some_and(|row| (row.set)(&mut recipe, &optimizer).is_ok());
            let meets = is_set && !is_kept_from(parameters, (NAME, &host), (OPTIMIZER, &optimizer));
            if meets && let Err(error) = recipe.check_optimizer_offload() {
                return Err(SpaceError::Rejected {
                    at: self.document.value(&["space", NAME]),
                    message: format!("{error}; or add `when: {{optimizer: [adamw]}}` to it"),
                });
            }
        }
        Ok(())
    }

    /// Refuses the place of a recipe file's updates where its optimizer forbids it.
    pub(super) fn check_offload(&self, recipe: &Recipe) -> Result<(), SpaceError> {
        recipe.check_optimizer_offload().map_err(|error| SpaceError::Rejected {
            at: self.document.value(&["optimizer", "offload"]),
            message: error.to_string(),
        })
    }
}

/// Whether the condition of one of two settings keeps these values from meeting.
fn is_kept_from(parameters: &Parameters, one: (&str, &ParamValue), other: (&str, &ParamValue)) -> bool {
    let forbids = |name: &str, (parent, value): (&str, &ParamValue)| {
        let mut all = parameters.space.parameters.iter();
        let condition = all
            .find(|parameter| parameter.name == name)
            .and_then(|parameter| parameter.condition.as_ref());
        condition.is_some_and(|condition| condition.parameter == parent && !condition.values.contains(value))
    };
    forbids(one.0, other) || forbids(other.0, one)
}
