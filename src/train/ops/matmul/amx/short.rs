//! Terms of few values, as an adapter has: multiply-adds in F32 onto the sums of the others. As digits they would fill no step, and
//! have factors, and so levels, of their own.

use super::layout::{STRIP_ROWS, VECTORS};
use crate::train::ops::element::Element;
use crate::train::ops::matmul::operand::{Right, Side, Source, Term};
use crate::train::ops::matmul::pack;
use crate::train::ops::matmul::tile::{LANES, Line, Unit};
use core::arch::x86_64::*;

/// Most values of a term: 16 take half the time of a step of digits.
const MOST: usize = 24;
/// Rows whose sums are in registers.
const ROWS: usize = 8;

/// Whether the term is one of these.
pub fn is_short<T>(term: &Term<'_, T>) -> bool {
    term.left.side == Side::Straight && term.right.depth() <= MOST && !matches!(term.right, Right::Coded(_))
}

/// Packs the panel of `columns` columns from `column` on: the lines of its vectors for each value of the summed dimension.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL.
pub unsafe fn pack(right: &Right<'_>, column: usize, columns: usize, lines: &mut [Line]) {
    /// The source up to the panel's last column.
    fn cut<'a, T: Element>(source: &Source<'a, T>, columns: usize) -> Source<'a, T> {
        Source { columns, ..*source }
    }
    let (end, units) = (column + columns, 0..right.depth());
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => pack::panel(&cut(source, end), Unit::Single, column, units, lines),
            Right::Bf16(source) => pack::panel(&cut(source, end), Unit::Single, column, units, lines),
            Right::F16(source) => pack::panel(&cut(source, end), Unit::Single, column, units, lines),
            Right::Coded(_) => {}
        }
    }
}

/// The left operand of a strip.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub start: *const f32,
    /// Values from one row to the next.
    pub stride: usize,
    pub count: usize,
    /// Values of a row.
    pub depth: usize,
}

/// Adds the rows times a packed panel to the sums.
///
/// # Safety
/// The processor has AVX-512F; the panel has lines of `vectors` vectors for each value of a row, and `sums` 32 rows of them.
pub unsafe fn add(rows: Rows, panel: *const Line, vectors: usize, sums: *mut f32) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match vectors {
            1 => add_vectors::<1>(rows, panel, sums),
            _ => add_vectors::<VECTORS>(rows, panel, sums),
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn add_vectors<const V: usize>(rows: Rows, panel: *const Line, sums: *mut f32) {
    for first in (0..STRIP_ROWS.min(rows.count)).step_by(ROWS) {
        let mut registers = [[_mm512_setzero_ps(); V]; ROWS];
        let mut starts = [rows.start; ROWS];
        // SAFETY: the caller's promise; rows behind the last one are multiplied as the last one, into sums that nobody reads.
        unsafe {
            for (index, (registers, start)) in registers.iter_mut().zip(&mut starts).enumerate() {
                *start = rows.start.add((first + index).min(rows.count - 1) * rows.stride);
                for (vector, register) in registers.iter_mut().enumerate() {
                    *register = _mm512_load_ps(sums.add(((first + index) * V + vector) * LANES));
                }
            }
            for place in 0..rows.depth {
                let mut line = [_mm512_setzero_ps(); V];
                for (vector, line) in line.iter_mut().enumerate() {
                    *line = _mm512_load_ps(panel.add(place * V + vector).cast());
                }
                for (registers, start) in registers.iter_mut().zip(starts) {
                    let value = _mm512_set1_ps(*start.add(place));
                    for (register, line) in registers.iter_mut().zip(line) {
                        *register = _mm512_fmadd_ps(value, line, *register);
                    }
                }
            }
            for (index, registers) in registers.into_iter().enumerate() {
                for (vector, register) in registers.into_iter().enumerate() {
                    _mm512_store_ps(sums.add(((first + index) * V + vector) * LANES), register);
                }
            }
        }
    }
}
