//! How operands are laid out for the tiles.
//!
//! | | a step | within it |
//! |---|---|---|
//! | left | parts x 2 KiB | each part: 16 upper rows, 16 lower rows, each row 16 pairs |
//! | right, V vectors | parts x V KiB | each part: 16 pairs, for each the V lines of its columns |

use super::unit::{ROW_BYTES, TILE_ROWS};
use crate::train::ops::matmul::tile::LANES;

/// Values of the summed dimension in a step.
pub const STEP: usize = 32;
/// Pairs of the summed dimension in a step.
pub const STEP_PAIRS: usize = STEP / 2;
/// Rows of a strip of the left operand.
pub const STRIP_ROWS: usize = 2 * TILE_ROWS;
/// Vectors of a full panel.
pub const VECTORS: usize = 2;
/// Columns of a full panel.
pub const PANEL: usize = VECTORS * LANES;
/// Bytes of a tile.
pub const TILE_BYTES: usize = TILE_ROWS * ROW_BYTES;
/// Bytes of one part of a step of the left operand.
pub const PART_LEFT_BYTES: usize = STRIP_ROWS * ROW_BYTES;
/// Lines of one part of a step of the left operand.
pub const PART_LEFT_LINES: usize = STRIP_ROWS;

/// Bytes of one part of a step of a panel.
pub const fn part_right_bytes(vectors: usize) -> usize {
    STEP_PAIRS * vectors * ROW_BYTES
}

/// Lines of one part of a step of a panel.
pub const fn part_right_lines(vectors: usize) -> usize {
    STEP_PAIRS * vectors
}
