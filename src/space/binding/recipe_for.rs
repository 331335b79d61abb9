//! From sampled values to a recipe.

use super::{Binding, Effect, SetError, binding, bindings};
use crate::space::Study;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{ParamValue, Params};

/// Why there is no recipe for some values: the trial is invalid, and is recorded without being run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecipeError {
    #[error("a command backend has no recipe")]
    NoRecipe,
    #[error("there is no parameter `{name}`")]
    UnknownParameter { name: String },
    #[error("{value} is not legal for `{name}`; write {legal}")]
    IllegalValue { name: String, value: String, legal: String },
    #[error(
        "`global_batch` {global_batch} is not a multiple of `micro_batch` {micro_batch}{}; lower `micro_batch`",
        times_devices(*.devices)
    )]
    Indivisible {
        global_batch: usize,
        micro_batch: usize,
        devices: usize,
    },
    #[error(
        "full fine-tuning cannot train quantized weights; search the quantized precisions with `method: lora` only"
    )]
    QuantizedWhole,
}

/// The recipe of one trial: the study's base with its fixed and the sampled values.
///
/// # Errors
/// Where the values do not make a recipe (see [`RecipeError`]): `global_batch` that `micro_batch` does not divide is
/// the one that a sound study can run into.
pub fn recipe_for(study: &Study, sampled: &Params) -> Result<Recipe, RecipeError> {
    let mut recipe = study.base.clone().ok_or(RecipeError::NoRecipe)?;
    let params = study.all_params(sampled);
    if let Some(name) = params.keys().find(|name| binding(name).is_none()) {
        return Err(RecipeError::UnknownParameter { name: name.clone() });
    }
    let full = params.get("method") == Some(&"full".into());
    let means_nothing = |binding: &Binding| full && binding.field.starts_with("adapter.");
    for binding in bindings().filter(|binding| !means_nothing(binding)) {
        if let Some(value) = params.get(binding.name) {
            apply(binding, value, &mut recipe)?;
        }
    }
    if recipe.adapter.is_none() && recipe.precision.is_quantized() {
        return Err(RecipeError::QuantizedWhole);
    }
    Ok(recipe)
}

/// Sets one value on a recipe.
pub(crate) fn apply(binding: &Binding, value: &ParamValue, recipe: &mut Recipe) -> Result<(), RecipeError> {
    let illegal = || RecipeError::IllegalValue {
        name: binding.name.to_owned(),
        value: value.to_string(),
        legal: binding.legal.to_string(),
    };
    if !binding.legal.allows(value) {
        return Err(illegal());
    }
    (binding.set)(recipe, value).map_err(|error| match error {
        SetError::Inapplicable => illegal(),
        SetError::Indivisible {
            global_batch,
            micro_batch,
            devices,
        } => RecipeError::Indivisible {
            global_batch,
            micro_batch,
            devices,
        },
    })
}

/// What multiplies the micro-batch, where there is more than one device.
fn times_devices(devices: usize) -> String {
    match devices {
        0 | 1 => String::new(),
        devices => format!(" times {devices} `devices`"),
    }
}

/// The metrics that a parameter can change in a study, or `None` where it can change all of them. `holds_global_batch`
/// says that the study gives `global_batch`, so that the micro-batch alone does not change the loss.
pub fn affected_metrics(binding: &Binding, holds_global_batch: bool) -> Option<Vec<String>> {
    let affected: Vec<String> = binding
        .effects
        .iter()
        .filter(|(_, effect)| match effect {
            Effect::Changes(_) => true,
            Effect::ThroughGlobalBatch(_) => !holds_global_batch,
            Effect::Same(_) => false,
        })
        .map(|(metric, _)| metric.to_owned())
        .collect();
    (affected.len() < binding.effects.iter().count()).then_some(affected)
}
