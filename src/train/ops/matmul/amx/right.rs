//! Panels of the right operand as the tiles read them.
//!
//! Where columns of the result are columns in memory, two neighbouring rows are interleaved through all panels of a task
//! at a time, so that memory is read in long pieces. Where they are rows in memory, sixteen of them are turned at a time.

use super::layout::{PANEL, STEP, STEP_PAIRS, VECTORS, part_right_lines};
use super::parts::{interleaved, neighbours, store};
use crate::train::ops::element::Element;
use crate::train::ops::matmul::coded::{self, CodedSource};
use crate::train::ops::matmul::finish;
use crate::train::ops::matmul::operand::{Order, Right, Source};
use crate::train::ops::matmul::pack::{fetch, transpose};
use crate::train::ops::matmul::tile::{LANES, Line};
use core::arch::x86_64::*;
use std::ops::Range;

/// Rows ahead that a straight operand is asked for.
const AHEAD: usize = 8;

/// Panels of a task, one after the other.
#[derive(Debug)]
pub struct Panels<'a> {
    pub lines: &'a mut [Line],
    /// Columns of the result.
    pub columns: Range<usize>,
    /// Lines from one panel to the next.
    pub stride: usize,
    /// Steps of other operands that each panel begins with.
    pub before: usize,
}

impl Panels<'_> {
    /// First column, vectors.
    fn panel(&self, panel: usize) -> (usize, usize) {
        let column = self.columns.start + panel * PANEL;
        (column, (self.columns.end - column).div_ceil(LANES).min(VECTORS))
    }

    fn count(&self) -> usize {
        self.columns.len().div_ceil(PANEL)
    }

    /// The lines of one part of a step of a panel.
    fn part<const PARTS: usize>(&mut self, panel: usize, step: usize, part: usize) -> &mut [Line] {
        let lines = part_right_lines(self.panel(panel).1);
        let start = panel * self.stride + ((self.before + step) * PARTS + part) * lines;
        &mut self.lines[start..start + lines]
    }
}

/// Packs `steps` of `right` into the panels, each value in `PARTS` parts. Returns whether the first part of every value is
/// all of it, as in a BF16 checkpoint that is computed with in F32.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and BF16.
pub unsafe fn pack<const PARTS: usize>(right: &Right<'_>, steps: Range<usize>, panels: &mut Panels<'_>) -> bool {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => pack_source::<_, PARTS>(source, steps, panels),
            Right::Bf16(source) => pack_source::<_, PARTS>(source, steps, panels),
            Right::F16(source) => pack_source::<_, PARTS>(source, steps, panels),
            Right::Coded(source) => pack_codes::<PARTS>(source, steps, panels),
        }
    }
}

/// Widens the codes of one panel after the other.
unsafe fn pack_codes<const PARTS: usize>(
    source: &CodedSource<'_>,
    steps: Range<usize>,
    panels: &mut Panels<'_>,
) -> bool {
    let mut is_first_part = true;
    let depth = steps.start * STEP..(steps.end * STEP).min(source.depth);
    for panel in 0..panels.count() {
        let (column, vectors) = panels.panel(panel);
        let columns = column..(column + vectors * LANES).min(panels.columns.end);
        let mut one = Panels {
            columns: 0..columns.len(),
            lines: &mut panels.lines[panel * panels.stride..],
            stride: panels.stride,
            before: panels.before,
        };
        // SAFETY: the caller's promise is the same.
        is_first_part &= unsafe {
            match PARTS {
                1 => coded::with_bf16(source, columns, depth.clone(), |block| {
                    pack_source::<_, PARTS>(block, 0..steps.len(), &mut one)
                }),
                _ => coded::with_f32(source, columns, depth.clone(), |block| {
                    pack_source::<_, PARTS>(block, 0..steps.len(), &mut one)
                }),
            }
        };
    }
    is_first_part
}

unsafe fn pack_source<T: Element, const PARTS: usize>(
    source: &Source<'_, T>,
    steps: Range<usize>,
    panels: &mut Panels<'_>,
) -> bool {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match source.order {
            Order::Transposed => transposed::<T, PARTS>(source, steps, panels),
            Order::Straight => straight::<T, PARTS>(source, steps, panels),
        }
    }
}

/// Columns of the result are rows in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn transposed<T: Element, const PARTS: usize>(
    source: &Source<'_, T>,
    steps: Range<usize>,
    panels: &mut Panels<'_>,
) -> bool {
    let mut second_parts = _mm512_setzero_si512();
    for panel in 0..panels.count() {
        let (column, vectors) = panels.panel(panel);
        for vector in 0..vectors {
            let first = column + vector * LANES;
            let rows = (source.columns - first).min(LANES);
            for (number, step) in steps.clone().enumerate() {
                let count = (source.depth - step * STEP).min(STEP);
                let mut lines = [[_mm512_setzero_si512(); LANES]; PARTS];
                for row in 0..rows {
                    let values = &source.values[(first + row) * source.stride + step * STEP..][..count];
                    // The same place of the rows that are packed next: far enough ahead for a weight that lies in memory.
                    fetch(values.as_ptr().wrapping_add(LANES * source.stride));
                    // SAFETY: the values are there.
                    let parts: [__m512i; PARTS] = unsafe { neighbours(values.as_ptr(), count, source.scale) };
                    second_parts = _mm512_or_si512(second_parts, parts.get(1).copied().unwrap_or(second_parts));
                    for (lines, part) in lines.iter_mut().zip(parts) {
                        lines[row] = part;
                    }
                }
                for (part, rows) in lines.into_iter().enumerate() {
                    let places = panels.part::<PARTS>(panel, number, part);
                    for (place, line) in places[vector..].iter_mut().step_by(vectors).zip(transpose(rows)) {
                        store(place, line);
                    }
                }
            }
        }
    }
    is_zero(second_parts)
}

/// Columns of the result are columns in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn straight<T: Element, const PARTS: usize>(
    source: &Source<'_, T>,
    steps: Range<usize>,
    panels: &mut Panels<'_>,
) -> bool {
    let mut second_parts = _mm512_setzero_si512();
    for (number, step) in steps.enumerate() {
        for pair in 0..STEP_PAIRS {
            let index = step * STEP + 2 * pair;
            for panel in 0..panels.count() {
                let (column, vectors) = panels.panel(panel);
                for vector in 0..vectors {
                    let first = column + vector * LANES;
                    let mask = finish::mask(source.columns - first);
                    let row = |index: usize| {
                        let start = (index * source.stride + first).min(source.values.len() - 1);
                        let values = source.values[start..].as_ptr();
                        fetch(values.wrapping_add(AHEAD * source.stride));
                        (values, if index < source.depth { mask } else { 0 })
                    };
                    // SAFETY: the masks keep to the row, or to nothing.
                    let parts: [__m512i; PARTS] = unsafe { interleaved(row(index), row(index + 1), source.scale) };
                    second_parts = _mm512_or_si512(second_parts, parts.get(1).copied().unwrap_or(second_parts));
                    for (part, line) in parts.into_iter().enumerate() {
                        store(
                            &mut panels.part::<PARTS>(panel, number, part)[pair * vectors + vector],
                            line,
                        );
                    }
                }
            }
        }
    }
    is_zero(second_parts)
}

/// Whether all values of both halves are zero, whatever their signs.
#[inline]
#[target_feature(enable = "avx512f")]
fn is_zero(pairs: __m512i) -> bool {
    _mm512_test_epi32_mask(pairs, _mm512_set1_epi32(0x7FFF_7FFF)) == 0
}
