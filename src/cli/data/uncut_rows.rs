//! Rows that nothing cuts: how long the longest is.

use super::study_rows::StudyRows;
use peft_tune_core::recipe::{HeldOut, Recipe};

/// Share of the rows that is held out while all of them are looked at.
const NEARLY_NONE: f64 = 1e-6;

/// Tokens of the longest row of a recipe, uncut, where its rows are here.
pub(in crate::cli) fn longest_of(recipe: &Recipe) -> Option<usize> {
    if recipe.data.train.is_empty() {
        return None;
    }
    let mut looked_at = recipe.clone();
    looked_at.data.held_out = HeldOut::Fraction(NEARLY_NONE);
    StudyRows::longest(&looked_at)
}
