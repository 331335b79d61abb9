//! Which engine computes a sum of products, given the dtypes and the processor.

#[cfg(target_arch = "x86_64")]
use super::operand::Side;
use super::operand::{Left, Product, Result, Term, Values};
#[cfg(target_arch = "x86_64")]
use super::{amx, blocked, thin};
use super::{int8, widened};
use crate::ops::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::ops::simd::{Level, level};
use half::bf16;
#[cfg(target_arch = "x86_64")]
use peft_tune_core::plan::products;
use peft_tune_core::plan::products::MAX_TERMS;
use std::borrow::Cow;

/// Computes the sum of `products`, (rows, columns), into `result`.
///
/// # Safety
/// `result` is valid for (rows, columns).
pub(crate) unsafe fn multiply<O: Element>(
    products: &[Product<'_>],
    (rows, columns): (usize, usize),
    result: Result<O>,
) {
    assert!(products.len() <= MAX_TERMS, "callers split longer sums");
    if products.iter().any(int8::takes) {
        // SAFETY: the caller's promise; none of the others is of bytes.
        return unsafe {
            int8::multiply(products, (rows, columns), result, |others, result| {
                multiply(others, (rows, columns), result);
            })
        };
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(terms) = pairs(products) {
        if rows >= products::amx::FEWEST_ROWS && amx::is_available() {
            // SAFETY: the unit is there; the result is the caller's promise.
            return unsafe { amx::multiply(&terms, rows, columns, result) };
        }
        // SAFETY: `pairs` checked the processor; the result is the caller's promise.
        return unsafe { blocked::multiply(&terms, rows, columns, result) };
    }
    let wide: Vec<Cow<'_, [f32]>> = products.iter().map(|product| widened(product.left)).collect();
    let terms: Vec<Term<'_, f32>> = products
        .iter()
        .zip(&wide)
        .map(|(product, values)| Term {
            left: left(product, values),
            right: product.right,
        })
        .collect();
    #[cfg(target_arch = "x86_64")]
    if pays_in_digits(&terms, rows, columns) && amx::is_available() {
        // SAFETY: the unit is there; the result is the caller's promise.
        return unsafe { amx::multiply(&terms, rows, columns, result) };
    }
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        // SAFETY: the level was checked; the result is the caller's promise.
        return unsafe { blocked::multiply(&terms, rows, columns, result) };
    }
    // SAFETY: the caller's promise.
    unsafe { widened::multiply(&terms, rows, columns, result) }
}

/// Whether a product of F32 values is worth splitting them: its time is above that of laying out both operands.
#[cfg(target_arch = "x86_64")]
fn pays_in_digits(terms: &[Term<'_, f32>], rows: usize, columns: usize) -> bool {
    let depth: usize = terms.iter().map(|term| term.right.depth()).sum();
    rows.min(columns).min(depth) >= products::amx::FEWEST_DIGITS
}

/// Adds alpha a^T b, a (tokens, rows) and b (tokens, columns) in F32 with so many values from one token to the next, to the row-major
/// `result`, where one of them has few columns. Otherwise returns false and does nothing.
pub(crate) fn multiply_thin(
    (a, a_stride): (Values<'_>, usize),
    (b, b_stride): (Values<'_>, usize),
    [tokens, rows, columns]: [usize; 3],
    alpha: f32,
    result: &mut [f32],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let (Values::F32(a), Values::F32(b)) = (a, b)
        && products::thin::takes([tokens, rows, columns])
        && level() == Level::Avx512
    {
        assert!(rows * columns <= result.len(), "the result has room");
        let matrix = |values, columns, stride| thin::Tokens {
            values,
            columns,
            stride,
        };
        let (a, b) = (matrix(a, rows, a_stride), matrix(b, columns, b_stride));
        let is_transposed = columns < rows;
        let (few, many) = if is_transposed { (b, a) } else { (a, b) };
        let target = thin::Target {
            start: result.as_mut_ptr(),
            is_transposed,
            stride: columns,
            alpha,
        };
        // SAFETY: the level was checked, and the result has room.
        unsafe { thin::add(few, many, tokens, target) };
        return true;
    }
    false
}

/// Whether products of BF16 run on pairs.
pub(crate) fn multiplies_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    return level() == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// The terms as products of pairs, where all left operands are BF16 with rows of whole pairs and the processor multiplies
/// them.
#[cfg(target_arch = "x86_64")]
pub(super) fn pairs<'a>(products: &[Product<'a>]) -> Option<Vec<Term<'a, bf16>>> {
    if !multiplies_pairs() {
        return None;
    }
    let term = |product: &Product<'a>| {
        let whole = product.right.depth().is_multiple_of(2) && product.stride.is_multiple_of(2);
        match product.left {
            Values::Bf16(values) if product.side == Side::Transposed || whole => Some(Term {
                left: left(product, values),
                right: product.right,
            }),
            _ => None,
        }
    };
    products.iter().map(term).collect()
}

pub(super) fn left<'a, T>(product: &Product<'_>, values: &'a [T]) -> Left<'a, T> {
    Left {
        values,
        side: product.side,
        stride: product.stride,
    }
}

/// The values in F32.
pub(super) fn widened(values: Values<'_>) -> Cow<'_, [f32]> {
    fn wide<T: Element>(values: &[T]) -> Cow<'_, [f32]> {
        let mut wide = vec![0.0; values.len()];
        widened::widen_slice(values, &mut wide);
        wide.into()
    }
    match values {
        Values::F32(values) => values.into(),
        Values::Bf16(values) => wide(values),
        Values::F16(values) => wide(values),
    }
}
