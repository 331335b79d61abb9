//! Blocked products on AMX, the matrix unit of Intel's servers from Sapphire Rapids on: tiles of 16 x 16 results from
//! pairs of BF16.
//!
//! result (R, C) = sum over the terms of left_i (R, Q_i) right_i (Q_i, C). The summed dimension runs in *steps* of 32
//! values, in *passes* of bounded length. In each pass all threads first lay out both operands as the tiles read them:
//! the left one in strips of 32 rows (where it does not lie that way), the right one in panels of 32 columns. Then each
//! task takes a group of panels, which stays in the second-level cache, and streams strips past it. A tile of the result
//! is 32 x 32: four of the eight tile registers hold it, the other four the operands.
//!
//! | operands | parts | products of a step |
//! |---|---|---|
//! | BF16 | the value | 1 |
//! | F32 | high + middle + low, each BF16 | 6 of 9 |
//! | F32, right operand of BF16 values | the same | 3 of 3 |
//!
//! An F32 value is exactly the sum of three BF16 values of 8 bits each. Of the nine products of two such sums three lie
//! below the last bit of the result (middle x low, low x middle, low x low: 2^-24 of it and less) and are left out. What
//! remains is as close to the exact product as a multiply-add in F32, at 16 / 6 times the rate of those. Subnormal values count as zero, and a
//! sum with an infinite value is not a number.
//!
//! Sources: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX; Henry, Tang and Heinecke 2019,
//! "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", on splitting.

mod engine;
mod kernel;
mod layout;
mod left;
mod parts;
mod right;
mod small;
mod unit;

pub use engine::multiply;
pub use small::multiply as multiply_small;
pub use unit::is_available;

/// Lets go of what this thread keeps from one product to the next.
pub fn forget() {
    engine::forget();
    small::forget();
}
