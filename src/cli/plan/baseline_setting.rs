//! The one setting of a study that a plan for a tool is about: its baseline, which is the first trial of a search.

use crate::cli::CliError;
use crate::cli::data::study_file::base_of;
use crate::cli::terminal::output::tell;
use crate::space::{Study, recipe_for};
use crate::tune::baseline;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::Params;

/// The recipe of a study's baseline, whose values are told. The model's width decides its learning rate alone, which costs nothing, and
/// is not looked at.
///
/// # Errors
/// Bad input: a study of a command; values that make no recipe.
pub(super) fn baseline_recipe(study: &Study) -> Result<Recipe, CliError> {
    base_of(study)?;
    let params = baseline(study, None).unwrap_or_else(|| study.baseline.clone());
    let recipe = recipe_for(study, &params).map_err(|error| {
        CliError::bad(format!(
            "{}: the baseline makes no setting: {error}; write one below `baseline`",
            study.source.path().display()
        ))
    })?;
    tell(format_args!("the setting is the study's baseline: {}", shown(&params)));
    Ok(recipe)
}

fn shown(params: &Params) -> String {
    // What is told of a learning rate would be a guess, and nothing depends on it.
    let costing = params.iter().filter(|(name, _)| *name != "learning_rate");
    let shown: Vec<String> = costing.map(|(name, value)| format!("{name} {value}")).collect();
    shown.join(", ")
}
