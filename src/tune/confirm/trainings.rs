//! Trainings of a study: trials that train the same.

use std::collections::BTreeMap;

use crate::space::{Study, recipe_for};
use peft_tune_core::recipe::RecipeKey;
use peft_tune_core::study::Trial;

/// The complete trials of a study by what decides their loss: those of one group train the same.
pub(super) fn by_training<'a>(study: &Study, history: &'a [Trial]) -> BTreeMap<RecipeKey, Vec<&'a Trial>> {
    let mut trainings: BTreeMap<RecipeKey, Vec<&Trial>> = BTreeMap::new();
    let complete = history.iter().filter(|trial| trial.state.name() == "complete");
    for trial in complete {
        if let Ok(recipe) = recipe_for(study, &trial.params) {
            trainings.entry(recipe.loss_key()).or_default().push(trial);
        }
    }
    trainings
}
