//! The innermost loops of blocked products on AVX2, where every unit is one F32 value.
//!
//! A line of sixteen units is two registers. A tile of 6 x 16 results takes 12 of the 16 registers, which hides the latency of
//! the multiply-add and loads two vectors and six broadcasts for 12 instructions; the micro-panel of a KC block streams from
//! the second-level cache at 11 bytes a cycle.

use super::instructions::Instructions;
use super::operand::{Left, Old, Result, Source};
use super::order::Order;
use super::pack;
use super::thin_tile::{self, Block, Factors};
use super::tile::{Begin, LANES, Line, PanelProduct, Unit};
use super::unit_operand::Operand;
use crate::ops::element::Element;
use candle_core::DType;
use core::arch::x86_64::*;
use peft_tune_core::plan::products::Tiling;
use peft_tune_core::plan::products::thin::COLUMNS;
use std::ops::Range;

/// F32 values of a register.
const WIDTH: usize = 8;
/// Registers of a line.
const HALVES: usize = LANES / WIDTH;
/// Units ahead that a straight operand is asked for.
const AHEAD: usize = 16;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2;

impl Instructions for Avx2 {
    const TILING: Tiling = Tiling::AVX2;

    fn unit<T: Operand>() -> Unit {
        Unit::Single
    }

    unsafe fn multiply(_: Unit, (rows, _): (usize, usize), pieces: &[PanelProduct], begin: Begin, sums: *mut f32) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match rows {
                6 => tile::<6>(pieces, begin, sums),
                4 => tile::<4>(pieces, begin, sums),
                2 => tile::<2>(pieces, begin, sums),
                1 => tile::<1>(pieces, begin, sums),
                _ => unreachable!("there is no tile of {rows} rows"),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn write<O: Element>(result: &Result<O>, sums: &[f32], row: usize, columns: Range<usize>) {
        for (index, sums) in sums.as_chunks::<LANES>().0.iter().enumerate() {
            let start = (row + index) * result.stride + columns.start;
            // SAFETY: the caller's promise; whole lines have a loop of a known length.
            unsafe {
                match columns.len() {
                    LANES => put(result, start, sums),
                    width => put(result, start, &sums[..width]),
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn nr_panel<T: Element>(
        source: &Source<'_, T>,
        _: Unit,
        column: usize,
        units: Range<usize>,
        nr_panel: &mut [Line],
    ) {
        match source.order {
            Order::Transposed => transposed(source, column, units, nr_panel),
            Order::Straight => straight(source, column, units, nr_panel),
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn mr_panel<T: Operand>(
        left: &Left<'_, T>,
        unit: Unit,
        rows: &Range<usize>,
        units: Range<usize>,
        mr_panel: &mut [u32],
    ) {
        pack::mr_panel(left, unit, rows, units, mr_panel);
    }

    /// Two rows of the tile at a time; the block stays in the first-level cache.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_thin<X: Element>(factors: &[Factors], block: Block<'_, X>, tile: &mut [f32; thin_tile::TILE]) {
        let columns = block.columns.min(COLUMNS);
        for (pair, tile) in tile.as_chunks_mut::<{ 2 * COLUMNS }>().0.iter_mut().enumerate() {
            let mut sums = [[_mm256_setzero_ps(); COLUMNS / WIDTH]; 2];
            for (index, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
                // SAFETY: a tile has so many vectors.
                *sum = unsafe { _mm256_loadu_ps(tile.as_ptr().add(index * WIDTH)) };
            }
            for (token, factors) in factors.iter().enumerate() {
                let row = &block.values[token * block.stride..][..columns];
                let factors = [2 * pair, 2 * pair + 1].map(|row| _mm256_set1_ps(factors[row]));
                for vector in 0..COLUMNS / WIDTH {
                    let values = load(row.get(vector * WIDTH..).unwrap_or_default());
                    for (sums, factor) in sums.iter_mut().zip(factors) {
                        sums[vector] = _mm256_fmadd_ps(factor, values, sums[vector]);
                    }
                }
            }
            for (index, sum) in sums.as_flattened().iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(tile.as_mut_ptr().add(index * WIDTH), *sum) };
            }
        }
    }
}

/// sums (M, 16) += left (M, units) times right (units, 16), for all pieces.
///
/// # Safety
/// The processor has the features; every pointer is valid for what the shapes say.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const M: usize>(pieces: &[PanelProduct], begin: Begin, sums: *mut f32) {
    // SAFETY: the caller's promise covers every address below.
    unsafe {
        let mut tile = [[_mm256_setzero_ps(); HALVES]; M];
        if begin == Begin::Sums {
            for (index, sum) in tile.as_flattened_mut().iter_mut().enumerate() {
                *sum = _mm256_loadu_ps(sums.add(index * WIDTH));
            }
        }
        for &PanelProduct { units, left, right } in pieces {
            for unit in 0..units {
                let line = right.add(unit).cast::<f32>();
                let halves = [_mm256_load_ps(line), _mm256_load_ps(line.add(WIDTH))];
                let column = left.start.add(unit * left.unit).cast::<f32>();
                for (m, row) in tile.iter_mut().enumerate() {
                    let value = _mm256_set1_ps(column.add(m * left.row).read_unaligned());
                    for (sum, half) in row.iter_mut().zip(halves) {
                        *sum = _mm256_fmadd_ps(value, half, *sum);
                    }
                }
            }
        }
        for (index, sum) in tile.as_flattened().iter().enumerate() {
            _mm256_storeu_ps(sums.add(index * WIDTH), *sum);
        }
    }
}

/// Writes the sums to the values of the result from `start` on.
///
/// # Safety
/// `result` is valid there, and no one else writes there.
#[inline(always)]
unsafe fn put<O: Element>(result: &Result<O>, start: usize, sums: &[f32]) {
    let place = result.at(start);
    for (index, sum) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let place = place.add(index);
            let value = match result.old {
                Old::Nothing => *sum,
                Old::Other(other) => other.add(start + index).read().widen() + sum,
                Old::Itself(alpha) => place.read().widen() + alpha * sum,
            };
            place.write(O::narrow(value));
        }
    }
}

/// Columns of the result are rows in memory: eight rows by eight units are turned at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transposed<T: Element>(source: &Source<'_, T>, column: usize, units: Range<usize>, nr_panel: &mut [Line]) {
    let scale = _mm256_set1_ps(source.scale);
    for half in 0..HALVES {
        let first = column + half * WIDTH;
        let rows = source.columns.saturating_sub(first).min(WIDTH);
        for block in units.clone().step_by(WIDTH) {
            let mut registers = [_mm256_setzero_ps(); WIDTH];
            for (row, register) in registers.iter_mut().enumerate().take(rows) {
                let start = (first + row) * source.stride + block;
                // The same units of the rows that are packed next.
                pack::fetch(source.values.as_ptr().wrapping_add(start + LANES * source.stride));
                let values = &source.values[start..(first + row) * source.stride + source.depth];
                *register = _mm256_mul_ps(load(values), scale);
            }
            let lines = nr_panel[block - units.start..].iter_mut();
            for (line, register) in lines.zip(transpose(registers)).take(units.end - block) {
                // SAFETY: a line is two aligned registers.
                unsafe { _mm256_store_ps(line.0.as_mut_ptr().cast::<f32>().add(half * WIDTH), register) };
            }
        }
    }
}

/// Columns of the result are columns in memory: a unit takes one row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn straight<T: Element>(source: &Source<'_, T>, column: usize, units: Range<usize>, nr_panel: &mut [Line]) {
    let scale = _mm256_set1_ps(source.scale);
    for (unit, line) in units.zip(nr_panel) {
        let row = &source.values[unit * source.stride..][column..source.columns];
        pack::fetch(row.as_ptr().wrapping_add(AHEAD * source.stride));
        for half in 0..HALVES {
            let register = _mm256_mul_ps(load(row.get(half * WIDTH..).unwrap_or_default()), scale);
            // SAFETY: a line is two aligned registers.
            unsafe { _mm256_store_ps(line.0.as_mut_ptr().cast::<f32>().add(half * WIDTH), register) };
        }
    }
}

/// The first eight values, widened; zeros where there are fewer.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<T: Element>(values: &[T]) -> __m256 {
    let padded;
    let start = match values.first_chunk::<WIDTH>() {
        Some(chunk) => chunk.as_ptr(),
        None => {
            padded = pack::pad::<T, WIDTH>(values);
            padded.as_ptr()
        }
    };
    // SAFETY: eight values can be read.
    unsafe {
        match T::DTYPE {
            DType::BF16 => {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            }
            DType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(start.cast())),
            _ => _mm256_loadu_ps(start.cast()),
        }
    }
}

/// Turns eight rows of eight values.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(rows: [__m256; WIDTH]) -> [__m256; WIDTH] {
    let mut pairs = rows;
    for i in (0..WIDTH).step_by(2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // Register 4 g + c then holds, in its 128-bit lane l, column 4 l + c of the rows 4 g to 4 g + 3.
    let mut quads = pairs;
    for i in (0..WIDTH).step_by(4) {
        quads[i] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm256_shuffle_ps::<0xEE>(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm256_shuffle_ps::<0x44>(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm256_shuffle_ps::<0xEE>(pairs[i + 1], pairs[i + 3]);
    }
    let mut columns = quads;
    for c in 0..4 {
        columns[c] = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
        columns[4 + c] = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
    }
    columns
}
