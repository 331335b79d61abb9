//! The task of a trial, as if nothing were known of it.

use crate::space::{Backend, RecipeError, Study, recipe_for};
use crate::worker::Task;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::Params;

/// The whole task of a trial, as if nothing were known.
///
/// # Errors
/// Where the params make no recipe.
pub(super) fn whole_task(study: &Study, params: &Params) -> Result<Task, RecipeError> {
    match study.backend {
        Backend::Command(_) => Ok(command_task(study, params)),
        Backend::Native | Backend::Trl(_) => Ok(Task::Recipe {
            recipe: Box::new(recipe_for(study, params)?),
            plan: study.plan.clone(),
        }),
    }
}

/// The recipe that is stored with a trial.
pub(super) fn recipe_of(task: &Result<Task, RecipeError>) -> Option<&Recipe> {
    match task {
        Ok(Task::Recipe { recipe, .. }) => Some(recipe.as_ref()),
        Ok(Task::Params { .. }) | Err(_) => None,
    }
}

/// The task of a trial whose program takes params as they are.
pub(super) fn command_task(study: &Study, params: &Params) -> Task {
    let steps = match &study.backend {
        Backend::Command(command) => command.steps,
        Backend::Native | Backend::Trl(_) => None,
    };
    Task::Params {
        params: study.all_params(params),
        seed: study.seed,
        steps,
    }
}
