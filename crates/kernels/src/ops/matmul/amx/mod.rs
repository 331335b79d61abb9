//! Blocked products on AMX, the matrix unit of Intel's servers from Sapphire Rapids on: tiles of 16 x 16 results from
//! pairs of BF16.
//!
//! result (R, C) = sum over the terms of left_i (R, Q_i) right_i (Q_i, C). The summed dimension runs in *steps* of 64 bytes, in
//! *KC blocks* of bounded length. In each KC block all threads first lay out the left operand as the tiles read it, in MR micro-panels of 32 rows
//! (where it does not lie that way). Then each task packs a group of NR micro-panels, 32 columns of the right operand each, which stay in its
//! second-level cache, and streams the MR micro-panels past them. A tile of the result is 32 x 32: four of the eight tile registers
//! hold it, the other four the operands. What is left to do of it then, from integers to the result in memory, is done between
//! the steps of the next one ([`stream`]).
//!
//! | operands | as the tiles have them | values of a step | tile products of a step |
//! |---|---|---|---|
//! | BF16 | the values | 32 | 1 |
//! | F32 | three digits of 8 bits ([`digits`]) | 64 | 6 |
//!
//! F32 thus runs at a third of BF16's rate, about as exact as multiply-adds in F32. Terms of few values, an adapter's, are multiply-adds onto the
//! sums of the others ([`short`]). Subnormal values of BF16 count as zero, and a sum with an
//! infinite value is not a number.
//!
//! Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX.

mod digits;
mod engine;
mod form;
mod kernel;
mod layout;
mod left;
mod pairs;
mod right;
mod short;
mod small;
mod stream;
mod unit;

pub(super) use engine::multiply;
pub(super) use form::Form;
pub(super) use small::multiply as multiply_small;
pub(super) use unit::{ROW_BYTES, TILE_ROWS, Tiles, is_available};

/// Releases what this thread keeps from one product to the next.
pub(super) fn forget() {
    engine::forget();
    small::forget();
}
