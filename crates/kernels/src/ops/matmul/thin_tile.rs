//! A tile of a thin product, and what is added to it.

use peft_tune_core::plan::products::thin::{COLUMNS, ROWS};

/// Sums of a tile.
pub(super) const TILE: usize = ROWS * COLUMNS;

/// A token's values of u that a tile takes; those beyond its columns are zero.
pub(super) type Factors = [f32; ROWS];

/// The columns of x that a tile takes, from its first token on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a, X> {
    pub values: &'a [X],
    /// Values from one token to the next.
    pub stride: usize,
    /// Columns, of which a tile takes so many at most.
    pub columns: usize,
}
