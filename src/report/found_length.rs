//! The length of the exported training where the search is to find it: in a recipe, and in words where it is not known.

use serde_json::{Value, json};

use peft_tune_core::recipe::TrainingLength;
use peft_tune_core::study::Trial;
use peft_tune_search::FoundLength;

/// What is said where the search has not found the length.
const UNKNOWN: &str = "the length of `training.length: auto` is not known, and one epoch stands in for it: it takes trainings made \
                       longer, which a search makes behind 16 trials or more, or with `confirm.trainings` behind fewer";

/// What the reason of a recommendation does not say yet of a length that the search finds, or has not found; `finds_length` says
/// whether it is to.
pub fn unsaid_length(reason: &str, finds_length: bool, trials: &[Trial]) -> Option<String> {
    let text = match FoundLength::of(trials) {
        Some(found) => found.said(),
        None => UNKNOWN.to_owned(),
    };
    (finds_length && !reason.contains(&text)).then_some(text)
}

/// The reason of a recommendation, with what it does not say yet of the length.
pub fn with_length(reason: String, finds_length: bool, trials: &[Trial]) -> String {
    match unsaid_length(&reason, finds_length, trials) {
        Some(unsaid) => format!("{reason}; {unsaid}"),
        None => reason,
    }
}

/// The stored recipe of a trial with the length that the search found, where it did.
pub fn with_found_length(mut recipe: Value, trials: &[Trial]) -> Value {
    if let Some(found) = FoundLength::of(trials)
        && let Some(length) = recipe.pointer_mut("/training/length")
    {
        *length = json!(TrainingLength::Tokens(found.length.tokens as u64));
    }
    recipe
}
