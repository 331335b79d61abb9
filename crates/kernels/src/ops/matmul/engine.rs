//! Choice of the engine that computes a sum of products, given the dtypes and the processor.

use super::operand::{Product, Result, Term, Values};
use super::segments::segments;
#[cfg(target_arch = "x86_64")]
use super::terms::{pairs, terms_of};
use super::terms::{wide, wide_terms};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2::Avx2, avx512::Avx512, blocked, thin};
use super::{int8, widened};
use crate::ops::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::ops::simd::{Level, level};
#[cfg(target_arch = "x86_64")]
use peft_tune_core::plan::products;
use peft_tune_core::plan::products::MAX_TERMS;
use std::ops::Range;

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
        return unsafe { blocked::multiply::<Avx512, _, _>(&terms, rows, columns, result) };
    }
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx2 {
        // SAFETY: the level was checked; the result is the caller's promise.
        unsafe {
            if let Some(terms) = terms_of(products, Values::f32) {
                return blocked::multiply::<Avx2, _, _>(&terms, rows, columns, result);
            }
            if let Some(terms) = terms_of(products, Values::bf16) {
                return blocked::multiply::<Avx2, _, _>(&terms, rows, columns, result);
            }
            if let Some(terms) = terms_of(products, Values::f16) {
                return blocked::multiply::<Avx2, _, _>(&terms, rows, columns, result);
            }
        }
    }
    let wide = wide(products);
    let terms = wide_terms(products, &wide);
    #[cfg(target_arch = "x86_64")]
    if pays_in_digits(&terms, rows, columns) && amx::is_available() {
        // SAFETY: the unit is there; the result is the caller's promise.
        return unsafe { amx::multiply(&terms, rows, columns, result) };
    }
    #[cfg(target_arch = "x86_64")]
    if !runs_widened() {
        // SAFETY: the level was checked; the result is the caller's promise.
        return unsafe { blocked::multiply::<Avx512, _, _>(&terms, rows, columns, result) };
    }
    // SAFETY: the caller's promise.
    unsafe { widened::multiply(&terms, rows, columns, result) }
}

/// Computes the sum of the `shared` products, (rows, columns), and for each range of `own` of its own products too, into `result`. Each
/// range has the bits that [`multiply`] gives it alone.
///
/// # Safety
/// Requirements of [`multiply`]; the ranges ascend within the rows.
pub(crate) unsafe fn multiply_by_rows<O: Element>(
    shared: &[Product<'_>],
    own: &[(Range<usize>, Vec<Product<'_>>)],
    (rows, columns): (usize, usize),
    result: Result<O>,
) {
    let all = || shared.iter().chain(own.iter().flat_map(|(_, products)| products));
    if !all().any(int8::takes) && runs_widened() {
        let (wide_shared, wide_own) = (wide(shared), own.iter().map(|(_, own)| wide(own)).collect::<Vec<_>>());
        let own: Vec<(Range<usize>, Vec<Term<'_, f32>>)> = own
            .iter()
            .zip(&wide_own)
            .map(|((range, products), wide)| (range.clone(), wide_terms(products, wide)))
            .collect();
        // SAFETY: the caller's promise.
        return unsafe { widened::multiply_by_rows(&wide_terms(shared, &wide_shared), &own, (rows, columns), result) };
    }
    for (number, range) in segments(own.iter().map(|(range, _)| range), rows) {
        let mut products: Vec<Product<'_>> = shared.iter().map(|product| product.at_rows(&range)).collect();
        if let Some(number) = number {
            products.extend(own[number].1.iter().copied());
        }
        // SAFETY: the caller's promise; the range lies within the rows.
        unsafe { multiply(&products, (range.len(), columns), result.at_row(range.start)) };
    }
}

/// Whether products of floats run through the `gemm` crate here. Sums of several trainings' rows go by this as well, or their bits would
/// not be those of one alone.
fn runs_widened() -> bool {
    #[cfg(target_arch = "x86_64")]
    return level() == Level::Portable;
    #[cfg(not(target_arch = "x86_64"))]
    return true;
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
        && level() >= Level::Avx2
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
        unsafe {
            match level() {
                Level::Avx512 => thin::add::<Avx512, _, _>(few, many, tokens, target),
                _ => thin::add::<Avx2, _, _>(few, many, tokens, target),
            }
        }
        return true;
    }
    false
}
