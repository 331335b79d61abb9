//! How operands are laid out for the tiles.
//!
//! A *slice* is what one step of a product reads of an operand: 64 bytes of the summed dimension, which are pairs of BF16 or fours of
//! digits, for 32 rows or for the columns of a NR micro-panel.
//!
//! | | a slice |
//! |---|---|
//! | left | 16 upper rows, 16 lower rows, a line each: 2 KiB |
//! | right, V vectors | 16 pairs or fours, for each the V lines of its columns: V KiB |
//!
//! BF16 is a slice for each step. F32 is a line of factors for each 16 rows or columns, then the slices of a few steps for the
//! highest digit, for the middle one and for the lowest, then those of the next few.

use super::unit::{ROW_BYTES, TILE_ROWS};
use crate::ops::matmul::tile::{LANES, Line};
use core::arch::x86_64::*;
pub(super) use peft_tune_core::plan::products::amx::{MR, NR};

/// Pairs or fours of a slice.
pub(super) const SLICE_ROWS: usize = 16;
/// Vectors of a full NR micro-panel.
pub(super) const VECTORS: usize = NR / LANES;
/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = TILE_ROWS * ROW_BYTES;
/// Bytes of a slice of the left operand.
pub(super) const LEFT_BYTES: usize = MR * ROW_BYTES;
/// Lines of a slice of the left operand.
pub(super) const LEFT_LINES: usize = MR;

/// Bytes of a slice of a NR micro-panel.
pub(super) const fn right_bytes(vectors: usize) -> usize {
    SLICE_ROWS * vectors * ROW_BYTES
}

/// Writes a line.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(line: &mut Line, value: __m512i) {
    // SAFETY: a line is one aligned register.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), value) };
}
