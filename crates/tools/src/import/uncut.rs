//! Rows that nothing cuts: how long they are taken to be.

use peft_tune_core::recipe::Recipe;

/// Tokens of a row where neither the rows nor the model are known.
const UNKNOWN: usize = 2048;

/// Takes the length of the longest row where it is known, and as many tokens as the model has positions for at most. Says which.
pub fn take_length(recipe: &mut Recipe, longest: Option<usize>, positions: Option<u64>) -> String {
    // Sizes have 32 bits in a browser.
    let positions = positions.map(|positions| usize::try_from(positions).unwrap_or(usize::MAX));
    let (length, why) = match (longest, positions) {
        (Some(longest), Some(positions)) if longest > positions => (
            positions,
            format!("the longest has {longest} tokens, and the model {positions} positions"),
        ),
        (Some(longest), _) => (longest.max(2), format!("the longest has {longest} tokens")),
        (None, Some(positions)) => (
            positions,
            format!("the longest is not known here, and the model has {positions} positions"),
        ),
        (None, None) => (UNKNOWN, "neither the longest nor the model is known here".to_owned()),
    };
    recipe.batch.sequence_length = length;
    format!("the file cuts no rows: {why}; {length} tokens are taken (`sequence_length`)")
}
