//! The left operand as the tiles read it: strips of 32 rows, step after step.

use super::layout::{PART_LEFT_LINES, STEP, STRIP_ROWS};
use super::parts::{Operand, interleaved, neighbours, store};
use super::unit::TILE_ROWS;
use crate::train::ops::element::Element;
use crate::train::ops::matmul::finish;
use crate::train::ops::matmul::operand::{Left, Side};
use crate::train::ops::matmul::pack::transpose;
use crate::train::ops::matmul::tile::{LANES, Line};
use core::arch::x86_64::*;
use std::ops::Range;

/// Lays out `steps` of the rows `rows`, at most [`STRIP_ROWS`], of an operand of summed length `depth`. What lies beyond
/// the operand is zero.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and BF16.
pub unsafe fn pack<T: Operand>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    steps: Range<usize>,
    strip: &mut [Line],
) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match T::PARTS {
            1 => pack_parts::<T, 1>(left, depth, rows, steps, strip),
            _ => pack_parts::<T, 3>(left, depth, rows, steps, strip),
        }
    }
}

/// As [`pack`], with any number of parts: with one, F32 values are rounded.
///
/// # Safety
/// As [`pack`].
pub unsafe fn pack_parts<T: Element, const PARTS: usize>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    steps: Range<usize>,
    strip: &mut [Line],
) {
    for (step, place) in steps.zip(strip.chunks_exact_mut(PARTS * PART_LEFT_LINES)) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match left.side {
                Side::Straight => straight::<T, PARTS>(left, depth, rows.clone(), step, place),
                Side::Transposed => transposed::<T, PARTS>(left, depth, rows.clone(), step, place),
            }
        }
    }
}

/// Rows lie along the summed dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn straight<T: Element, const PARTS: usize>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    step: usize,
    place: &mut [Line],
) {
    let first = step * STEP;
    let count = (depth - first).min(STEP);
    for index in 0..STRIP_ROWS {
        let row = rows.start + index;
        let mut parts = [_mm512_setzero_si512(); PARTS];
        if row < rows.end {
            let values = &left.values[row * left.stride + first..][..count];
            // SAFETY: the values are there.
            parts = unsafe { neighbours(values.as_ptr(), count, 1.0) };
        }
        for (part, line) in parts.into_iter().enumerate() {
            store(&mut place[part * PART_LEFT_LINES + index], line);
        }
    }
}

/// Rows lie across the summed dimension: sixteen pairs of sixteen rows are turned at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn transposed<T: Element, const PARTS: usize>(
    left: &Left<'_, T>,
    depth: usize,
    rows: Range<usize>,
    step: usize,
    place: &mut [Line],
) {
    for tile in 0..STRIP_ROWS / TILE_ROWS {
        let row = rows.start + tile * TILE_ROWS;
        let mask = finish::mask(rows.end.saturating_sub(row));
        let mut tiles = [[_mm512_setzero_si512(); LANES]; PARTS];
        for pair in 0..LANES {
            let index = step * STEP + 2 * pair;
            let line = |index: usize| {
                let start = (index * left.stride + row).min(left.values.len() - 1);
                (left.values[start..].as_ptr(), if index < depth { mask } else { 0 })
            };
            // SAFETY: the masks keep to the rows of the operand.
            let parts: [__m512i; PARTS] = unsafe { interleaved(line(index), line(index + 1), 1.0) };
            for (tile, part) in tiles.iter_mut().zip(parts) {
                tile[pair] = part;
            }
        }
        for (part, pairs) in tiles.into_iter().enumerate() {
            let lines = &mut place[part * PART_LEFT_LINES + tile * TILE_ROWS..][..TILE_ROWS];
            for (line, row) in lines.iter_mut().zip(transpose(pairs)) {
                store(line, row);
            }
        }
    }
}
