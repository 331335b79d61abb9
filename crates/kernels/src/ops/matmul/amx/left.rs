//! The left operand as the tiles read it: MR micro-panels of 32 rows.

use super::digits::{self, DIGITS, LEFT_FACTORS};
use super::layout::{LEFT_LINES, MR, SLICE_ROWS, store};
use super::pairs;
use super::unit::TILE_ROWS;
use crate::ops::element::Element;
use crate::ops::matmul::finish;
use crate::ops::matmul::operand::{Left, Side};
use crate::ops::matmul::pack::transpose;
use crate::ops::matmul::tile::{LANES, Line};
use core::arch::x86_64::*;
use std::ops::Range;

/// Lays out `steps` of the rows `rows`, at most [`STRIP_ROWS`], of an operand of summed length `depth`, in pairs. What lies
/// beyond the operand is zero; F32 values are rounded.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and BF16.
pub(super) unsafe fn pack_pairs<T: Element>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    steps: Range<usize>,
    mr_panel: &mut [Line],
) {
    for (step, slice) in steps.zip(mr_panel.chunks_exact_mut(LEFT_LINES)) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match left.side {
                Side::Straight => straight_pairs(left, depth, rows.clone(), step, slice),
                Side::Transposed => transposed_pairs(left, depth, rows.clone(), step, slice),
            }
        }
    }
}

/// Packs rows as [`pack_pairs`] does, in digits.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and VBMI.
pub(super) unsafe fn pack_digits<T: Element>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    steps: Range<usize>,
    mr_panel: &mut [Line],
) {
    let places = steps.start * digits::STEP..(steps.end * digits::STEP).min(depth);
    // SAFETY: the caller's promise is the same.
    unsafe {
        match left.side {
            Side::Straight => straight_digits(left, rows, places, mr_panel),
            Side::Transposed => transposed_digits(left, rows, places, mr_panel),
        }
    }
}

/// Rows lie along the summed dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn straight_pairs<T: Element>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    step: usize,
    slice: &mut [Line],
) {
    let first = step * pairs::STEP;
    let count = (depth - first).min(pairs::STEP);
    for (index, line) in slice.iter_mut().enumerate() {
        let row = rows.start + index;
        let mut pairs = _mm512_setzero_si512();
        if row < rows.end {
            let values = &left.values[row * left.stride + first..][..count];
            // SAFETY: the values are there.
            pairs = unsafe { pairs::neighbours(values.as_ptr(), count, 1.0) };
        }
        store(line, pairs);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
unsafe fn straight_digits<T: Element>(
    left: &Left<'_, T>,
    rows: Range<usize>,
    places: Range<usize>,
    mr_panel: &mut [Line],
) {
    let (factors, slices) = mr_panel.split_at_mut(LEFT_FACTORS);
    let mut rows_of_values: [&[T]; MR] = [&[]; MR];
    for (values, row) in rows_of_values.iter_mut().zip(rows) {
        *values = &left.values[row * left.stride..][places.clone()];
    }
    let mut ups = [Line::ZERO; LEFT_FACTORS];
    for ((up, down), rows) in ups.iter_mut().zip(factors).zip(rows_of_values.chunks_exact(LANES)) {
        let mut largest = Line::ZERO;
        for (largest, values) in largest.0.iter_mut().zip(rows) {
            // SAFETY: the caller's promise.
            *largest = unsafe { digits::largest(values) };
        }
        let factors = digits::factors(load(&largest));
        store(up, _mm512_castps_si512(factors.up));
        store(down, _mm512_castps_si512(factors.down));
    }
    let steps = places.len().div_ceil(digits::STEP);
    for step in 0..steps {
        for (index, values) in rows_of_values.iter().enumerate() {
            let values = &values[(step * digits::STEP).min(values.len())..];
            let up = _mm512_castsi512_ps(_mm512_set1_epi32(ups[index / LANES].0[index % LANES] as i32));
            // SAFETY: the values are there.
            let lines = unsafe { digits::neighbours(values.as_ptr(), values.len().min(digits::STEP), up) };
            for (digit, line) in lines.into_iter().enumerate() {
                store(
                    &mut slices[digits::slice(steps, digit, step) * LEFT_LINES + index],
                    line,
                );
            }
        }
    }
}

/// Sixteen values of the place `place` of the summed dimension, which lie across it, and which of them are there.
fn across<'a, T>(
    left: &Left<'a, T>,
    place: usize,
    row: usize,
    places: &Range<usize>,
    rows: __mmask16,
) -> (*const T, __mmask16) {
    let start = (place * left.stride + row).min(left.values.len() - 1);
    (
        left.values[start..].as_ptr(),
        if places.contains(&place) { rows } else { 0 },
    )
}

/// Rows lie across the summed dimension: sixteen pairs of sixteen rows are turned at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn transposed_pairs<T: Element>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    step: usize,
    slice: &mut [Line],
) {
    for (tile, lines) in slice.chunks_exact_mut(TILE_ROWS).enumerate() {
        let row = rows.start + tile * TILE_ROWS;
        let mask = finish::mask(rows.end.saturating_sub(row));
        let mut pairs = [_mm512_setzero_si512(); SLICE_ROWS];
        for (pair, line) in pairs.iter_mut().enumerate() {
            let place = step * pairs::STEP + 2 * pair;
            let at = |next| across(left, place + next, row, &(0..depth), mask);
            let [first, second] = [at(0), at(1)];
            // SAFETY: the masks keep to the rows of the operand.
            *line = unsafe { pairs::interleaved(first, second, 1.0) };
        }
        for (line, row) in lines.iter_mut().zip(transpose(pairs)) {
            store(line, row);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn transposed_digits<T: Element>(
    left: &Left<'_, T>,
    rows: Range<usize>,
    places: Range<usize>,
    mr_panel: &mut [Line],
) {
    let (downs, slices) = mr_panel.split_at_mut(LEFT_FACTORS);
    let steps = places.len().div_ceil(digits::STEP);
    for (tile, down) in downs.iter_mut().enumerate() {
        let row = rows.start + tile * TILE_ROWS;
        let mask = finish::mask(rows.end.saturating_sub(row));
        let mut largest = _mm512_setzero_si512();
        for place in places.clone() {
            let (values, mask) = across(left, place, row, &places, mask);
            // SAFETY: the mask keeps to the rows of the operand.
            largest = digits::larger(largest, unsafe { finish::load(values, mask) });
        }
        let factors = digits::factors(largest);
        store(down, _mm512_castps_si512(factors.down));
        for step in 0..steps {
            let mut fours = [[_mm512_setzero_si512(); SLICE_ROWS]; DIGITS];
            for index in 0..SLICE_ROWS {
                let place = places.start + step * digits::STEP + 4 * index;
                let at = |next| across(left, place + next, row, &places, mask);
                let values = [at(0), at(1), at(2), at(3)];
                // SAFETY: the masks keep to the rows of the operand.
                let lines = unsafe { digits::interleaved(values, factors.up) };
                for (fours, line) in fours.iter_mut().zip(lines) {
                    fours[index] = line;
                }
            }
            for (digit, fours) in fours.into_iter().enumerate() {
                let lines =
                    &mut slices[digits::slice(steps, digit, step) * LEFT_LINES + tile * TILE_ROWS..][..TILE_ROWS];
                for (line, row) in lines.iter_mut().zip(transpose(fours)) {
                    store(line, row);
                }
            }
        }
    }
}

/// Reads a line.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line is one aligned register.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}
