//! Products of bytes: rows of activations in 8 bits times the codes of a quantized weight, summed in whole numbers.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | x, s | (T, Q), (T,) | the left operand and, of each row, a 127th of its largest absolute value |
//! | p | (T, Q) | round(x / s), from -127 to 127 |
//! | w, f | (Q, N), (Q / 64, N) | codes of the right operand and, of 64 of them along the summed dimension, their factor |
//!
//! result (T, N) = s times the sum over the blocks b of f (b, N) times the whole number that p and w of b sum up to. That number
//! is exact, and the sums of blocks are F32, in one order whatever the threads and tasks.
//!
//! In the forward pass the codes are those of int8 itself and those of nf4 in 127ths, with the constants of the weight's own blocks, which
//! lie along the summed dimension. In the product for the gradient of the input they lie across it, so that each 64 rows of a
//! column are quantized anew while they are packed. So are the rows of a weight whose blocks do not end with its rows.
//!
//! One value of a row that is far above the others takes their precision: they share its s. Nothing is split off for such outliers.
//!
//! | processor | form |
//! |---|---|
//! | AVX-512 with VNNI | tiles of `_mm512_dpbusd_epi32`, unsigned times signed: the left codes are stored with 128 added, which a packed line of each block takes off again |
//! | others | plain loops over rows of codes, with `_mm256_dpbusd_avx_epi32` where there is AVX-VNNI |

#[cfg(target_arch = "x86_64")]
mod blocked;
mod codes;
mod left;
#[cfg(test)]
mod oracle;
#[cfg(target_arch = "x86_64")]
mod panel;
mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;

use super::operand::{Old, Product, Result, Right, Side};
use super::quantized::QuantizedSource;
use crate::ops::element::Element;
use left::{LeftCodes, LeftMemory};
use peft_tune_core::plan::BLOCK;
use std::cell::RefCell;

/// One product of bytes: rows of codes and what they are multiplied with.
#[derive(Clone, Copy, Debug)]
struct ByteTerm<'a> {
    left: LeftCodes<'a>,
    right: QuantizedSource<'a>,
}

impl ByteTerm<'_> {
    /// Blocks of the summed dimension, the last of which may be cut.
    fn blocks(&self) -> usize {
        self.right.depth.div_ceil(BLOCK)
    }
}

thread_local! {
    /// Codes of left operands, which the calling thread keeps for all.
    static LEFT: RefCell<LeftMemory> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    LEFT.take();
    #[cfg(target_arch = "x86_64")]
    blocked::forget();
}

/// Whether the left operand of a product is taken in 8 bits.
pub(super) fn takes(product: &Product<'_>) -> bool {
    let Right::QuantizedMatrix(source) = &product.right else {
        return false;
    };
    product.side == Side::Straight && source.rounds_left()
}

/// Computes the sum of `products`, some of which are products of bytes, into `result`; `others` computes the other ones into a result.
///
/// # Safety
/// `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<O: Element>(
    products: &[Product<'_>],
    (rows, columns): (usize, usize),
    result: Result<O>,
    others: impl FnOnce(&[Product<'_>], Result<O>),
) {
    let (bytes, rest): (Vec<Product<'_>>, Vec<Product<'_>>) = products.iter().partition(|product| takes(product));
    // Taken out, since a thread that waits for others may run a product of its own.
    let mut memory = LEFT.take();
    let left = memory.fill(&bytes, rows);
    let terms = bytes
        .iter()
        .zip(left)
        .filter_map(|(product, left)| match product.right {
            Right::QuantizedMatrix(right) => Some(ByteTerm { left, right }),
            _ => None,
        });
    let terms: Vec<ByteTerm<'_>> = terms.collect();
    // SAFETY: the result is the caller's promise.
    unsafe { sum(&terms, &rest, (rows, columns), result, others) };
    LEFT.set(memory);
}

/// As [`multiply`], of rows that are rounded already.
unsafe fn sum<O: Element>(
    terms: &[ByteTerm<'_>],
    rest: &[Product<'_>],
    size: (usize, usize),
    mut result: Result<O>,
    others: impl FnOnce(&[Product<'_>], Result<O>),
) {
    #[cfg(target_arch = "x86_64")]
    if blocked::is_available() {
        // SAFETY: the processor has what the tiles need; the result is the caller's promise.
        return unsafe { blocked::multiply(terms, rest, size, result) };
    }
    if !rest.is_empty() {
        others(rest, result);
        result.old = Old::Itself(1.0);
    }
    // SAFETY: the caller's promise.
    unsafe { plain::multiply(terms, size, result) };
}
