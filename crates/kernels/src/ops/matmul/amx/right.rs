//! NR micro-panels of the right operand as the tiles read them.
//!
//! Where columns of the result are columns in memory, neighbouring rows are interleaved through all NR micro-panels of a task at a time,
//! so that memory is read in long pieces. Where they are rows in memory, sixteen of them are turned at a time.

use super::digits::{self, DIGITS, RIGHT_FACTORS};
use super::form::Form;
use super::layout::{NR, SLICE_ROWS, VECTORS, store};
use super::pairs;
use crate::ops::element::Element;
use crate::ops::matmul::finish;
use crate::ops::matmul::operand::{Right, Source};
use crate::ops::matmul::order::Order;
use crate::ops::matmul::pack::{fetch, transpose};
use crate::ops::matmul::quantized;
use crate::ops::matmul::quantized_source::QuantizedSource;
use crate::ops::matmul::tile::{LANES, Line};
use core::arch::x86_64::*;
use std::ops::Range;

/// Rows ahead that a straight operand is asked for.
const AHEAD: usize = 8;
/// NR micro-panels that one task packs, so that memory is read in long pieces.
pub(super) const TASK_NR_PANELS: usize = 4;

/// NR micro-panels of a task, at most [`TASK_NR_PANELS`], one after the other.
#[derive(Debug)]
pub(super) struct NrPanels<'a> {
    pub lines: &'a mut [Line],
    /// Columns of the result.
    pub columns: Range<usize>,
    /// Lines from one NR micro-panel to the next.
    pub stride: usize,
    /// Rows of other operands that each NR micro-panel begins with.
    pub before: usize,
}

/// A vector of columns.
#[derive(Clone, Copy, Debug)]
struct ColumnVector {
    nr_panel: usize,
    vector: usize,
    /// Vectors of its NR micro-panel.
    vectors: usize,
    /// Column at which the vector begins.
    column: usize,
}

impl NrPanels<'_> {
    fn count(&self) -> usize {
        self.columns.len().div_ceil(NR)
    }

    /// The vectors of all NR micro-panels.
    fn places(&self) -> impl Iterator<Item = ColumnVector> + use<> {
        let columns = self.columns.clone();
        columns.clone().step_by(LANES).enumerate().map(move |(index, column)| {
            let (nr_panel, vector) = (index / VECTORS, index % VECTORS);
            ColumnVector {
                nr_panel,
                vector,
                vectors: (columns.end - column + vector * LANES).div_ceil(LANES).min(VECTORS),
                column,
            }
        })
    }

    /// Rows from `row` on of one vector of columns.
    fn rows(&mut self, place: ColumnVector, row: usize) -> impl Iterator<Item = &mut Line> {
        let start = place.nr_panel * self.stride + (self.before + row) * place.vectors + place.vector;
        self.lines[start..].iter_mut().step_by(place.vectors)
    }

    fn set(&mut self, place: ColumnVector, row: usize, value: __m512i) {
        if let Some(line) = self.rows(place, row).next() {
            // SAFETY: a line is one aligned register, and whoever has the value has AVX-512.
            unsafe { store(line, value) };
        }
    }
}

/// Packs `steps` of `right` into the NR micro-panels.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL, BF16 and VBMI.
pub(super) unsafe fn pack(form: Form, right: &Right<'_>, steps: Range<usize>, nr_panels: &mut NrPanels<'_>) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => pack_source(form, source, steps, nr_panels),
            Right::Bf16(source) => pack_source(form, source, steps, nr_panels),
            Right::F16(source) => pack_source(form, source, steps, nr_panels),
            Right::QuantizedMatrix(source) => pack_codes(form, source, steps, nr_panels),
        }
    }
}

/// Widens the codes of one NR micro-panel after the other.
unsafe fn pack_codes(form: Form, source: &QuantizedSource<'_>, steps: Range<usize>, nr_panels: &mut NrPanels<'_>) {
    let depth = steps.start * form.step()..(steps.end * form.step()).min(source.depth);
    for nr_panel in 0..nr_panels.count() {
        let column = nr_panels.columns.start + nr_panel * NR;
        let columns = column..(column + NR).min(nr_panels.columns.end);
        let mut one = NrPanels {
            columns: 0..columns.len(),
            lines: &mut nr_panels.lines[nr_panel * nr_panels.stride..],
            stride: nr_panels.stride,
            before: nr_panels.before,
        };
        // SAFETY: the caller's promise is the same.
        unsafe {
            match form {
                Form::Pairs => quantized::with_bf16(source, columns, depth.clone(), |block| {
                    pack_source(form, block, 0..steps.len(), &mut one);
                }),
                Form::Digits => quantized::with_f32(source, columns, depth.clone(), |block| {
                    pack_source(form, block, 0..steps.len(), &mut one);
                }),
            }
        }
    }
}

unsafe fn pack_source<T: Element>(
    form: Form,
    source: &Source<'_, T>,
    steps: Range<usize>,
    nr_panels: &mut NrPanels<'_>,
) {
    let places = steps.start * form.step()..(steps.end * form.step()).min(source.depth);
    // SAFETY: the caller's promise is the same.
    unsafe {
        match (form, source.order) {
            (Form::Pairs, Order::Transposed) => transposed_pairs(source, places, nr_panels),
            (Form::Pairs, Order::Straight) => straight_pairs(source, places, nr_panels),
            (Form::Digits, Order::Transposed) => transposed_digits(source, places, nr_panels),
            (Form::Digits, Order::Straight) => straight_digits(source, places, nr_panels),
        }
    }
}

/// Values of one column of the result where columns are rows in memory; none beyond the operand.
fn along<'a, T>(source: &Source<'a, T>, column: usize, places: Range<usize>) -> &'a [T] {
    if column >= source.columns {
        return &[];
    }
    &source.values[column * source.stride..][places]
}

/// Values of one place of the summed dimension where columns are columns in memory, and which of them are there.
#[inline]
fn across<T>(source: &Source<'_, T>, place: usize, column: usize, end: usize) -> (*const T, __mmask16) {
    let start = (place * source.stride + column).min(source.values.len() - 1);
    let values = source.values[start..].as_ptr();
    (
        values,
        if place < end {
            finish::mask(source.columns - column)
        } else {
            0
        },
    )
}

/// Columns of the result are rows in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn transposed_pairs<T: Element>(source: &Source<'_, T>, places: Range<usize>, nr_panels: &mut NrPanels<'_>) {
    for place in nr_panels.places() {
        for (step, start) in places.clone().step_by(pairs::STEP).enumerate() {
            let mut lines = [_mm512_setzero_si512(); LANES];
            for (row, line) in lines.iter_mut().enumerate() {
                let values = along(source, place.column + row, start..(start + pairs::STEP).min(places.end));
                // The same place of the rows that are packed next: far enough ahead for a weight that lies in memory.
                fetch(values.as_ptr().wrapping_add(LANES * source.stride));
                // SAFETY: the values are there.
                *line = unsafe { pairs::neighbours(values.as_ptr(), values.len(), source.scale) };
            }
            for (line, pairs) in nr_panels.rows(place, step * SLICE_ROWS).zip(transpose(lines)) {
                store(line, pairs);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
unsafe fn transposed_digits<T: Element>(source: &Source<'_, T>, places: Range<usize>, nr_panels: &mut NrPanels<'_>) {
    let steps = places.len().div_ceil(digits::STEP);
    for place in nr_panels.places() {
        let mut largest = [0; LANES];
        for (row, largest) in largest.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *largest = unsafe { digits::largest(along(source, place.column + row, places.clone())) };
        }
        // SAFETY: both types are 512 bits that may have any value.
        let factors = digits::factors(unsafe { core::mem::transmute::<[u32; LANES], __m512i>(largest) });
        nr_panels.set(place, 0, down(factors.down, source.scale));
        // SAFETY: as above.
        let ups = unsafe { core::mem::transmute::<__m512, [f32; LANES]>(factors.up) };
        for (step, start) in places.clone().step_by(digits::STEP).enumerate() {
            let mut slices = [[_mm512_setzero_si512(); LANES]; DIGITS];
            for (row, up) in ups.into_iter().enumerate() {
                let values = along(
                    source,
                    place.column + row,
                    start..(start + digits::STEP).min(places.end),
                );
                for line in 0..4 {
                    fetch(values.as_ptr().wrapping_add(LANES * source.stride + line * LANES));
                }
                // SAFETY: the values are there.
                let lines = unsafe { digits::neighbours(values.as_ptr(), values.len(), _mm512_set1_ps(up)) };
                for (slice, line) in slices.iter_mut().zip(lines) {
                    slice[row] = line;
                }
            }
            for (digit, slice) in slices.into_iter().enumerate() {
                let row = RIGHT_FACTORS + digits::slice(steps, digit, step) * SLICE_ROWS;
                for (line, fours) in nr_panels.rows(place, row).zip(transpose(slice)) {
                    store(line, fours);
                }
            }
        }
    }
}

/// Columns of the result are columns in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn straight_pairs<T: Element>(source: &Source<'_, T>, places: Range<usize>, nr_panels: &mut NrPanels<'_>) {
    let rows = places.len().div_ceil(pairs::STEP) * SLICE_ROWS;
    for row in 0..rows {
        let index = places.start + 2 * row;
        for place in nr_panels.places() {
            let at = |next| across(source, index + next, place.column, places.end);
            let [first, second] = [at(0), at(1)];
            fetch(first.0.wrapping_add(AHEAD * source.stride));
            fetch(second.0.wrapping_add(AHEAD * source.stride));
            // SAFETY: the masks keep to the row, or to nothing.
            nr_panels.set(place, row, unsafe { pairs::interleaved(first, second, source.scale) });
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn straight_digits<T: Element>(source: &Source<'_, T>, places: Range<usize>, nr_panels: &mut NrPanels<'_>) {
    let mut largest = [_mm512_setzero_si512(); TASK_NR_PANELS * VECTORS];
    for index in places.clone() {
        for (place, largest) in nr_panels.places().zip(&mut largest) {
            let (values, mask) = across(source, index, place.column, places.end);
            fetch(values.wrapping_add(AHEAD * source.stride));
            // SAFETY: the mask keeps to the row.
            *largest = digits::larger(*largest, unsafe { finish::load(values, mask) });
        }
    }
    let mut ups = [_mm512_setzero_ps(); TASK_NR_PANELS * VECTORS];
    for ((place, up), largest) in nr_panels.places().zip(&mut ups).zip(largest) {
        let factors = digits::factors(largest);
        *up = factors.up;
        nr_panels.set(place, 0, down(factors.down, source.scale));
    }
    let steps = places.len().div_ceil(digits::STEP);
    for row in 0..steps * SLICE_ROWS {
        let index = places.start + 4 * row;
        for (place, up) in nr_panels.places().zip(ups) {
            let at = |next| across(source, index + next, place.column, places.end);
            let values = [at(0), at(1), at(2), at(3)];
            // SAFETY: the masks keep to the row, or to nothing.
            let lines = unsafe { digits::interleaved(values, up) };
            for (digit, line) in lines.into_iter().enumerate() {
                let slice = digits::slice(steps, digit, row / SLICE_ROWS);
                nr_panels.set(place, RIGHT_FACTORS + slice * SLICE_ROWS + row % SLICE_ROWS, line);
            }
        }
    }
}

/// The factors of a NR micro-panel's columns, with that of the operand.
#[inline]
#[target_feature(enable = "avx512f")]
fn down(factors: __m512, scale: f32) -> __m512i {
    _mm512_castps_si512(_mm512_mul_ps(factors, _mm512_set1_ps(scale)))
}
