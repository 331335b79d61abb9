//! Terms of few values, as an adapter has: multiply-adds in F32 onto the sums of the others. As digits they would fill no step, and
//! have factors, and so levels, of their own.

use crate::ops::element::Element;
use crate::ops::matmul::operand::{Right, Side, Source, Term};
use crate::ops::matmul::pack;
use crate::ops::matmul::tile::{Line, Unit};
use core::arch::x86_64::*;
use peft_tune_core::plan::products::amx::SHORT;

/// Whether the term is one of these.
pub(super) fn is_short<T>(term: &Term<'_, T>) -> bool {
    term.left.side == Side::Straight && term.right.depth() <= SHORT && !matches!(term.right, Right::QuantizedMatrix(_))
}

/// Packs the NR micro-panel of `columns` columns from `column` on: the lines of its vectors for each value of the summed dimension.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL.
pub(super) unsafe fn pack(right: &Right<'_>, column: usize, columns: usize, lines: &mut [Line]) {
    /// The source up to the NR micro-panel's last column.
    fn cut<'a, T: Element>(source: &Source<'a, T>, columns: usize) -> Source<'a, T> {
        Source { columns, ..*source }
    }
    let (end, units) = (column + columns, 0..right.depth());
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => pack::nr_panel(&cut(source, end), Unit::Single, column, units, lines),
            Right::Bf16(source) => pack::nr_panel(&cut(source, end), Unit::Single, column, units, lines),
            Right::F16(source) => pack::nr_panel(&cut(source, end), Unit::Single, column, units, lines),
            Right::QuantizedMatrix(_) => {}
        }
    }
}

/// Rows of the left operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub start: *const f32,
    /// Values from one row to the next.
    pub stride: usize,
    pub count: usize,
    /// Values of a row.
    pub depth: usize,
}

/// Adds the rows times a packed NR micro-panel, which has `V` lines for each value of a row, to the sums of `R` rows.
///
/// # Safety
/// The processor has AVX-512F; the rows and the NR micro-panel can be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add<const R: usize, const V: usize>(
    rows: Rows,
    nr_panel: *const Line,
    sums: &mut [[__m512; V]; R],
) {
    // Rows behind the last one are multiplied as the last one, into sums that nobody reads.
    let starts: [_; R] = std::array::from_fn(|index| rows.start.wrapping_add(index.min(rows.count - 1) * rows.stride));
    for place in 0..rows.depth {
        // SAFETY: the caller's promise.
        unsafe {
            let line: [_; V] = std::array::from_fn(|vector| _mm512_load_ps(nr_panel.add(place * V + vector).cast()));
            for (sums, start) in sums.iter_mut().zip(starts) {
                let value = _mm512_set1_ps(*start.add(place));
                for (sum, line) in sums.iter_mut().zip(line) {
                    *sum = _mm512_fmadd_ps(value, line, *sum);
                }
            }
        }
    }
}
