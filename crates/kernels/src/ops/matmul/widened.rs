//! Products through the `gemm` crate, for processors without AVX2: right operands that are not F32 are widened in
//! blocks of columns of the result, and where the result is not F32, only one block's sums are held in F32.

use super::operand::{Left, Old, Result, Right, Side, Source, Term};
use super::order::Order;
use super::segments::segments;
use crate::ops::element::Element;
use crate::thread_pool;
use std::ops::Range;

/// Columns of a block.
const BLOCK: usize = 256;

/// Products that some rows have beside those of all.
type OwnTerms<'a> = (Range<usize>, Vec<Term<'a, f32>>);

/// Computes the sum of `terms`, (rows, columns), into `result`.
///
/// # Safety
/// `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<O: Element>(terms: &[Term<'_, f32>], rows: usize, columns: usize, result: Result<O>) {
    // SAFETY: the caller's promise is the same.
    unsafe { multiply_by_rows(terms, &[], (rows, columns), result) }
}

/// Computes the sum of `terms`, (rows, columns), and for each range of `own` of its own terms too, into `result`. Each range has the bits
/// that it would have alone.
///
/// # Safety
/// `result` is valid for (rows, columns); the ranges ascend within the rows.
pub(super) unsafe fn multiply_by_rows<O: Element>(
    terms: &[Term<'_, f32>],
    own: &[OwnTerms<'_>],
    (rows, columns): (usize, usize),
    result: Result<O>,
) {
    let direct = match result.old {
        _ if O::DTYPE != candle_core::DType::F32 => None,
        Old::Nothing => Some((result.start.cast::<f32>(), 1.0)),
        Old::Itself(alpha) => Some((result.start.cast::<f32>(), alpha)),
        Old::Other(_) => None,
    };
    let all = || terms.iter().chain(own.iter().flat_map(|(_, terms)| terms));
    let whole = direct.is_some() && all().all(|term| matches!(term.right, Right::F32(_)));
    let (mut sums, mut widened) = (Vec::new(), Vec::new());
    for start in (0..columns).step_by(if whole { columns.max(1) } else { BLOCK }) {
        let block = start..if whole { columns } else { (start + BLOCK).min(columns) };
        if direct.is_none() {
            sums.resize(rows * block.len(), 0.0);
        }
        let (target, stride, alpha) = match direct {
            // SAFETY: the block lies within the result.
            Some((target, alpha)) => (unsafe { target.add(block.start) }, result.stride, alpha),
            None => (sums.as_mut_ptr(), block.len(), 1.0),
        };
        for (number, term) in terms.iter().enumerate() {
            let sum = Sum {
                target,
                stride,
                alpha,
                keep: number > 0 || (direct.is_some() && matches!(result.old, Old::Itself(_))),
            };
            let is_alike = |(range, _): &OwnTerms<'_>| multiplies_alike(range.len(), block.len(), term.right.depth());
            let parts = match own.iter().all(is_alike) {
                true => vec![(None, 0..rows)],
                false => segments(own.iter().map(|(range, _)| range), rows),
            };
            for (_, part) in parts {
                // SAFETY: the target is valid for the rows and the block's columns, at its stride.
                unsafe {
                    sum.at_row(part.start)
                        .add(&at_rows(term, &part), part.len(), block.clone(), &mut widened)
                };
            }
        }
        let sum = Sum {
            target,
            stride,
            alpha,
            keep: true,
        };
        for (range, terms) in own {
            for term in terms {
                // SAFETY: the range lies within the rows.
                unsafe {
                    sum.at_row(range.start)
                        .add(term, range.len(), block.clone(), &mut widened)
                };
            }
        }
        if direct.is_none() {
            // SAFETY: the block lies within the result.
            unsafe { store(&sums, &result, block) };
        }
    }
}

/// Destination of one product.
#[derive(Clone, Copy)]
struct Sum {
    target: *mut f32,
    stride: usize,
    alpha: f32,
    /// Whether what is there already is part of the sum.
    keep: bool,
}

/// Whether the `gemm` crate sums so many rows in the order in which it sums more of them. It has ways of its own for one row, for results
/// of 256 values, and, where it would split the sum otherwise, for 64 rows and columns.
fn multiplies_alike(rows: usize, columns: usize, depth: usize) -> bool {
    const FEW: usize = 64;
    const KC: usize = 512;
    const DOTS: usize = 256;
    rows > 1 && rows * columns > DOTS && (rows > FEW || columns > FEW || depth <= KC)
}

/// A term of some rows.
fn at_rows<'a>(term: &Term<'a, f32>, rows: &Range<usize>) -> Term<'a, f32> {
    let left = term.left;
    let start = match left.side {
        Side::Straight => rows.start * left.stride,
        Side::Transposed => rows.start,
    };
    Term {
        left: Left {
            values: left.values.get(start..).unwrap_or_default(),
            ..left
        },
        ..*term
    }
}

impl Sum {
    /// Returns the destination from a row on.
    fn at_row(&self, row: usize) -> Self {
        Self {
            target: self.target.wrapping_add(row * self.stride),
            ..*self
        }
    }

    /// # Safety
    /// The target is valid for `rows` rows of the block's columns.
    unsafe fn add(&self, term: &Term<'_, f32>, rows: usize, block: Range<usize>, widened: &mut Vec<f32>) {
        let (right, scale, depth, (column_stride, depth_stride)) = match term.right {
            Right::F32(source) => {
                let (column_stride, depth_stride) = match source.order {
                    Order::Transposed => (source.stride, 1),
                    Order::Straight => (1, source.stride),
                };
                let start = &source.values[(block.start * column_stride).min(source.values.len())..];
                (start, source.scale, source.depth, (column_stride, depth_stride))
            }
            Right::Bf16(source) => widen(&source, block.clone(), widened),
            Right::F16(source) => widen(&source, block.clone(), widened),
            Right::QuantizedMatrix(source) => {
                let strides = source.widen(block.clone(), widened);
                (&widened[..], source.scale, source.depth, strides)
            }
        };
        let left = term.left;
        let (row_stride, left_depth_stride) = match left.side {
            Side::Straight => (left.stride, 1),
            Side::Transposed => (1, left.stride),
        };
        // SAFETY: strides and sizes stay within the operands; the target is the caller's promise.
        unsafe {
            gemm::gemm(
                rows,
                block.len(),
                depth,
                self.target,
                1,
                self.stride as isize,
                self.keep,
                left.values.as_ptr(),
                left_depth_stride as isize,
                row_stride as isize,
                right.as_ptr(),
                column_stride as isize,
                depth_stride as isize,
                1.0,
                self.alpha * scale,
                false,
                false,
                false,
                gemm::Parallelism::Rayon(0),
            );
        }
    }
}

/// The block's columns of `source` in F32: (values, scale left to apply, depth, (column stride, depth stride)).
fn widen<'a, T: Element>(
    source: &Source<'_, T>,
    block: Range<usize>,
    widened: &'a mut Vec<f32>,
) -> (&'a [f32], f32, usize, (usize, usize)) {
    let (depth, width) = (source.depth, block.len());
    widened.resize(depth * width, 0.0);
    // Rows in memory: how many, their part that the block takes, and the strides of what becomes of them.
    let (first, part, strides) = match source.order {
        Order::Transposed => (block.start, 0..depth, (depth, 1)),
        Order::Straight => (0, block, (1, width)),
    };
    thread_pool::for_chunks(widened, part.len(), |row, wide| {
        let row = &source.values[(first + row) * source.stride..];
        widen_row(&row[part.clone()], wide);
    });
    (widened, source.scale, depth, strides)
}

/// Widens a long slice on all threads.
pub(super) fn widen_slice<T: Element>(values: &[T], widened: &mut [f32]) {
    const CHUNK: usize = 16 * 1024;
    thread_pool::for_chunks(widened, CHUNK, |index, widened| {
        widen_row(&values[index * CHUNK..], widened);
    });
}

crate::ops::simd::multiversion! {
    /// Widens as many values as there is room for.
    pub(super) fn widen_row<T: Element>(values: &[T], widened: &mut [f32]) {
        for (wide, value) in widened.iter_mut().zip(values) {
            *wide = value.widen();
        }
    }
}

/// Adds the sums of a block to what its columns of the result are to be added to.
///
/// # Safety
/// `result` is valid for as many rows as there are sums.
unsafe fn store<O: Element>(sums: &[f32], result: &Result<O>, block: Range<usize>) {
    thread_pool::for_each(sums.len() / block.len(), |row| {
        for (index, sum) in sums[row * block.len()..][..block.len()].iter().enumerate() {
            let place = row * result.stride + block.start + index;
            // SAFETY: the caller's promise; every row is written by one task.
            unsafe {
                let sum = match result.old {
                    Old::Nothing => *sum,
                    Old::Other(other) => other.add(place).read().widen() + sum,
                    Old::Itself(alpha) => result.start.add(place).read().widen() + alpha * sum,
                };
                result.start.add(place).write(O::narrow(sum));
            }
        }
    });
}
