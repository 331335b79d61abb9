//! Rows that nothing cuts: how long they may be.

use super::study_rows::StudyRows;
use peft_tune_core::recipe::{HeldOut, Recipe};

/// Tokens of a row where neither the rows nor the model are known.
const UNKNOWN: usize = 2048;
/// Share of the rows that is held out while all of them are looked at.
const NEARLY_NONE: f64 = 1e-6;

/// Takes the length of the longest row where it is known here, and as many tokens as the model has positions for at most. Says which.
pub(in crate::cli) fn take_length(recipe: &mut Recipe, positions: Option<u64>) -> String {
    let mut looked_at = recipe.clone();
    looked_at.data.held_out = HeldOut::Fraction(NEARLY_NONE);
    let longest = match recipe.data.train.is_empty() {
        true => None,
        false => StudyRows::longest(&looked_at),
    };
    let (length, why) = match (longest, positions.map(|positions| positions as usize)) {
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
