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
//! | AMX, from 8 rows on | tiles of `tdpbssd`, whose whole numbers go through memory to the sums of blocks |
//! | AVX-512 with VNNI | tiles of `_mm512_dpbusd_epi32`, unsigned times signed: the left codes are stored with 128 added, which a packed line of each block takes off again |
//! | others | plain loops over rows of codes, with `_mm256_dpbusd_avx_epi32` where there is AVX-VNNI |

#[cfg(target_arch = "x86_64")]
mod blocked;
mod codes;
mod left;
#[cfg(test)]
pub(super) mod oracle;
#[cfg(target_arch = "x86_64")]
mod panel;
mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::operand::{Old, Product, Result, Right, Side};
use super::quantized_source::QuantizedSource;
#[cfg(target_arch = "x86_64")]
use super::tile::Unit;
use crate::ops::element::Element;
use left::{Layout, LeftCodes, LeftMemory};
use peft_tune_core::plan::BLOCK;
#[cfg(target_arch = "x86_64")]
use peft_tune_core::plan::products::int8;
use std::cell::RefCell;

/// Instructions that products of bytes run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    Plain,
}

impl Form {
    /// Form that this processor takes for so many rows. The sums of bytes have the same bits on AMX and VNNI.
    fn of(rows: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if blocked::is_available() {
            let is_amx = rows >= int8::FEWEST_AMX_ROWS && amx::is_available();
            return if is_amx { Self::Amx } else { Self::Vnni };
        }
        Self::Plain
    }

    /// Whether the other products of a sum, of such units, have tiles too: an adapter's in pairs of BF16.
    #[cfg(target_arch = "x86_64")]
    fn has_tiles_of(self, unit: Unit) -> bool {
        self == Self::Amx && unit == Unit::Pair
    }

    /// How it takes the left codes.
    fn layout(self) -> Layout {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Layout::Signed,
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => Layout::Biased,
            Self::Plain => Layout::Biased,
        }
    }
}

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
    let form = Form::of(rows);
    let left = memory.fill(&bytes, rows, form.layout());
    let terms = bytes
        .iter()
        .zip(left)
        .filter_map(|(product, left)| match product.right {
            Right::QuantizedMatrix(right) => Some(ByteTerm { left, right }),
            _ => None,
        });
    let terms: Vec<ByteTerm<'_>> = terms.collect();
    // SAFETY: the result is the caller's promise.
    unsafe { sum(form, (&terms, &rest), (rows, columns), result, others) };
    LEFT.set(memory);
}

/// Sums as [`multiply`] does, of rows that are rounded already.
unsafe fn sum<O: Element>(
    form: Form,
    (terms, rest): (&[ByteTerm<'_>], &[Product<'_>]),
    size: (usize, usize),
    mut result: Result<O>,
    others: impl FnOnce(&[Product<'_>], Result<O>),
) {
    #[cfg(target_arch = "x86_64")]
    if form != Form::Plain {
        // SAFETY: the processor has what the tiles need; the result is the caller's promise.
        return unsafe { blocked::multiply(form, terms, rest, size, result) };
    }
    if !rest.is_empty() {
        others(rest, result);
        result.old = Old::Itself(1.0);
    }
    // SAFETY: the caller's promise.
    unsafe { plain::multiply(terms, size, result) };
}
