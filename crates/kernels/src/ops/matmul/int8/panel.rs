//! Packing of the right operand into NR micro-panels of bytes.
//!
//! A NR micro-panel holds up to 48 columns of the result, that is V = 1, 2 or 3 vectors. For each block of 64 of the summed dimension it
//! has V lines for each of the sixteen units of four codes, V lines of what the 128 added to the left codes would add, to begin with, and V lines of factors.

use super::ByteTerm;
use super::codes::Block;
use crate::ops::matmul::order::Order;
use crate::ops::matmul::pack::{transpose, vectors};
use crate::ops::matmul::quantized_source::{CHECKED, QuantizedSource};
use crate::ops::matmul::tile::{LANES, Line, VECTORS};
use core::arch::x86_64::*;
use peft_tune_core::plan::BLOCK;
use peft_tune_core::plan::products::NR;
use peft_tune_core::plan::products::int8::BLOCK_LINES;

/// Units of four codes in a block.
pub(super) const UNITS: usize = BLOCK / 4;

/// Packs the NR micro-panel of `term` that starts at `column`.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn pack(term: &ByteTerm<'_>, column: usize, nr_panel: &mut [Line]) {
    let source = &term.right;
    let vectors = vectors(source.columns, column);
    let columns = column..(column + NR).min(source.columns);
    let mut block = Block::ZERO;
    for (number, lines) in nr_panel.chunks_exact_mut(BLOCK_LINES * vectors).enumerate() {
        match source.order {
            Order::Transposed => {
                block.fill(source, columns.clone(), number);
                // SAFETY: the caller's promise is the same.
                unsafe { turn(&block, vectors, lines) };
            }
            // SAFETY: the caller's promise is the same.
            Order::Straight => unsafe { quantize(source, column, number, lines) },
        }
    }
}

/// Turns rows of codes into lines of units.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn turn(block: &Block, vectors: usize, lines: &mut [Line]) {
    for vector in 0..vectors {
        let mut rows = [_mm512_setzero_si512(); LANES];
        for (row, codes) in rows.iter_mut().zip(&block.codes[vector * LANES..]) {
            // SAFETY: a row has 64 codes.
            *row = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
        }
        let units = transpose(rows);
        // SAFETY: the block has factors for each lane.
        let factors = unsafe { _mm512_loadu_ps(block.factors[vector * LANES..].as_ptr()) };
        // SAFETY: the lines are those of a block.
        unsafe { put(&units, factors, (vector, vectors), lines) };
    }
}

/// Quantizes 64 rows of a weight anew, column by column.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn quantize(source: &QuantizedSource<'_>, column: usize, number: usize, lines: &mut [Line]) {
    let vectors = vectors(source.columns, column);
    let (columns, depth) = (
        column..(column + NR).min(source.columns),
        number * BLOCK..((number + 1) * BLOCK).min(source.depth),
    );
    // Rows of 48 values with a line more, so that whole vectors can be read.
    let mut values = [0f32; BLOCK * NR + LANES];
    let (width, length) = (columns.len(), depth.len());
    let (rows, part) = source.block(columns, depth);
    source
        .values
        .fill_f32(rows, part, &mut values[..width * length])
        .expect(CHECKED);
    for vector in 0..vectors {
        let mask = crate::ops::matmul::finish::mask(width - vector * LANES);
        let value = |row: usize| {
            let mask = if row < length { mask } else { 0 };
            // SAFETY: the mask keeps to the row.
            unsafe {
                _mm512_maskz_loadu_ps(
                    mask,
                    values.as_ptr().add((row * width + vector * LANES).min(BLOCK * NR)),
                )
            }
        };
        let mut largest = _mm512_setzero_ps();
        for row in 0..length {
            largest = _mm512_max_ps(largest, _mm512_abs_ps(value(row)));
        }
        let is_there = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(largest, _mm512_setzero_ps());
        let factor = _mm512_maskz_div_ps(is_there, _mm512_set1_ps(127.0), largest);
        let code = |row: usize| _mm512_cvtps_epi32(_mm512_mul_ps(value(row), factor));
        let byte = _mm512_set1_epi32(0xff);
        let mut units = [_mm512_setzero_si512(); UNITS];
        for (unit, line) in units.iter_mut().enumerate().take(length.div_ceil(4)) {
            let [first, second, third, fourth] = [0, 1, 2, 3].map(|index| code(4 * unit + index));
            let low = _mm512_or_si512(
                _mm512_and_si512(first, byte),
                _mm512_slli_epi32::<8>(_mm512_and_si512(second, byte)),
            );
            let high = _mm512_or_si512(
                _mm512_slli_epi32::<16>(_mm512_and_si512(third, byte)),
                _mm512_slli_epi32::<24>(fourth),
            );
            *line = _mm512_or_si512(low, high);
        }
        let factors = _mm512_mul_ps(largest, _mm512_set1_ps(source.scale / 127.0));
        // SAFETY: the lines are those of a block.
        unsafe { put(&units, factors, (vector, vectors), lines) };
    }
}

/// Writes the lines of one vector of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn put(units: &[__m512i; UNITS], factors: __m512, (vector, vectors): (usize, usize), lines: &mut [Line]) {
    let ones = _mm512_set1_epi8(1);
    let mut codes = _mm512_setzero_si512();
    for (unit, line) in units.iter().enumerate() {
        codes = _mm512_dpbusd_epi32(codes, ones, *line);
        // SAFETY: a line is one aligned register.
        unsafe { _mm512_store_si512(lines[unit * vectors + vector].0.as_mut_ptr().cast(), *line) };
    }
    let begin = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(codes));
    // SAFETY: as above.
    unsafe {
        _mm512_store_si512(lines[UNITS * vectors + vector].0.as_mut_ptr().cast(), begin);
        _mm512_store_ps(lines[(UNITS + 1) * vectors + vector].0.as_mut_ptr().cast(), factors);
    }
}

const _: () = assert!(BLOCK_LINES == UNITS + 2 && VECTORS * LANES == NR);
