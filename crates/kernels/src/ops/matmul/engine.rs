//! Choice of the engine that computes a sum of products, given the dtypes and the processor.

use super::by_rows::segments;
#[cfg(target_arch = "x86_64")]
use super::operand::Side;
use super::operand::{Left, Product, Result, Term, Values};
#[cfg(target_arch = "x86_64")]
use super::{
    amx,
    avx2::Avx2,
    blocked::{self, Operand},
    instructions::Avx512,
    thin,
};
use super::{int8, widened};
use crate::ops::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::ops::simd::{Level, level};
use half::bf16;
#[cfg(target_arch = "x86_64")]
use peft_tune_core::plan::products;
use peft_tune_core::plan::products::MAX_TERMS;
use std::borrow::Cow;
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

/// The left operands in F32.
fn wide<'a>(products: &[Product<'a>]) -> Vec<Cow<'a, [f32]>> {
    products.iter().map(|product| widened(product.left)).collect()
}

/// Products with their left operands in F32.
fn wide_terms<'a>(products: &[Product<'a>], wide: &'a [Cow<'_, [f32]>]) -> Vec<Term<'a, f32>> {
    let both = products.iter().zip(wide);
    let term = |(product, values): (&Product<'a>, &'a Cow<'_, [f32]>)| Term {
        left: left(product, values),
        right: product.right,
    };
    both.map(term).collect()
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

/// The terms, where `values` has the left operands of all products.
#[cfg(target_arch = "x86_64")]
fn terms_of<'a, T: Operand>(
    products: &[Product<'a>],
    values: impl Fn(Values<'a>) -> Option<&'a [T]>,
) -> Option<Vec<Term<'a, T>>> {
    let term = |product: &Product<'a>| {
        Some(Term {
            left: left(product, values(product.left)?),
            right: product.right,
        })
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
