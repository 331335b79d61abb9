//! Trainings on preferences, whose costs nothing predicts so far.

use crate::cli::CliError;
use peft_tune_core::recipe::Recipe;

/// Refuses a recipe that no prediction is for.
///
/// # Errors
/// Bad input: a trainer of preferences.
pub(super) fn check_predicted(recipe: &Recipe) -> Result<(), CliError> {
    match recipe.trainer {
        trainer if trainer.is_sft() => Ok(()),
        trainer => Err(CliError::bad(format!(
            "the costs of `trainer: {trainer}` are not predicted so far, neither here nor in TRL: a search with `--backend trl` measures \
             them"
        ))),
    }
}
