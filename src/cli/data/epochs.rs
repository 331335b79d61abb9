//! How often a training goes through its rows: what is more than once is told before it begins.

use crate::cli::CliError;
use crate::space::Study;
use peft_tune_core::recipe::{BatchSettings, Recipe, TrainingLength};
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};

/// Passes over the rows of `data` that a training of `length` takes.
///
/// # Errors
/// Bad input: settings that no rows can be made of.
fn count(length: TrainingLength, batch: &BatchSettings, data: &PreparedData) -> Result<f64, CliError> {
    let source = BatchSource::new(data.train().clone(), batch, RowOrder::File).map_err(CliError::bad_input)?;
    Ok(source.epochs_of(source.steps(length)))
}

/// What stands in for a length that the search is to find.
pub(in crate::cli) fn stand_in_of_study(study: &Study) -> Option<&'static str> {
    study.finds_length.then_some(
        "`training.length: auto` is found behind the trials, by trainings of several lengths; until then one epoch stands in for it",
    )
}

/// Warns that a training goes through its rows more than once, where its length does not say so itself.
///
/// # Errors
/// Bad input: settings that no rows can be made of.
pub(in crate::cli) fn warning_of_recipe(recipe: &Recipe, data: &PreparedData) -> Result<Option<String>, CliError> {
    let length = recipe.training.length;
    let epochs = match length {
        TrainingLength::Epochs(_) => return Ok(None),
        TrainingLength::Tokens(_) | TrainingLength::Steps(_) => count(length, &recipe.batch, data)?,
    };
    Ok(text(epochs, epochs, "the training", "lower `training.length`"))
}

/// Warns that a study's trials go through their rows more than once, where their length is given in tokens: the
/// shortest sequences hold the least of them.
///
/// # Errors
/// Bad input: settings that no rows can be made of.
pub(in crate::cli) fn warning_of_study(
    study: &Study,
    base: &Recipe,
    data: &PreparedData,
) -> Result<Option<String>, CliError> {
    let Some(TrainingLength::Tokens(tokens)) = study.plan.train.as_ref().map(|train| train.length) else {
        return Ok(None);
    };
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for length in study.sequence_lengths(base) {
        let data = data.at_length(length).map_err(CliError::bad_input)?;
        let batch = BatchSettings {
            sequence_length: length,
            ..BatchSettings::default()
        };
        let source = BatchSource::new(data.train().clone(), &batch, RowOrder::File).map_err(CliError::bad_input)?;
        let epochs = tokens as f64 / source.tokens_per_epoch() as f64;
        (least, most) = (least.min(epochs), most.max(epochs));
    }
    Ok(text(
        least,
        most,
        "the training of a trial",
        "lower `trial.training_tokens`",
    ))
}

fn text(least: f64, most: f64, what: &str, how: &str) -> Option<String> {
    // A few rows a second time are not worth a word.
    if most < 1.05 {
        return None;
    }
    let times = match most - least < 0.05 {
        true => format!("{most:.1} times"),
        false => format!("{least:.1} to {most:.1} times"),
    };
    Some(format!(
        "{what} goes {times} over the training rows, so its loss is that of repeated text and not of as many new \
         tokens; {how}, or add data"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_epoch_is_told() {
        assert_eq!(text(0.2, 1.0, "it", "x"), None);
        assert!(
            text(3.21, 3.21, "it", "x")
                .unwrap()
                .starts_with("it goes 3.2 times over")
        );
        assert!(
            text(0.5, 3.0, "it", "x")
                .unwrap()
                .starts_with("it goes 0.5 to 3.0 times")
        );
    }
}
