//! The innermost loops of the products of bytes.
//!
//! A tile of 4 x 48 results takes twelve registers of whole numbers, which a block of 64 fills, and twelve of F32 sums, to which
//! they are added with the block's factors: 24 instructions beside 192 that multiply and add 64 codes each.

use super::panel::UNITS;
use crate::ops::matmul::tile::{Begin, LANES, Line};
use core::arch::x86_64::*;
use peft_tune_core::plan::products::int8::{BLOCK_LINES, TILE_ROWS};

/// Rows of the left operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Codes of the first row.
    pub codes: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Scales of the rows.
    pub scales: *const f32,
}

/// sums (M, V * 16) += the rows' scales times the blocks' sums.
///
/// # Safety
/// The processor has AVX-512F and VNNI; every pointer is valid for what the shapes say.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn tile<const M: usize, const V: usize>(
    blocks: usize,
    rows: Rows,
    mut right: *const Line,
    begin: Begin,
    sums: *mut f32,
) {
    // SAFETY: the caller's promise covers every address below.
    unsafe {
        let mut tile = [[_mm512_setzero_ps(); V]; M];
        let mut left = rows.codes;
        for _ in 0..blocks {
            let mut whole = [[_mm512_setzero_si512(); V]; M];
            for row in &mut whole {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = _mm512_load_si512(right.add(UNITS * V + v).cast());
                }
            }
            for unit in 0..UNITS {
                let mut vectors = [_mm512_setzero_si512(); V];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = _mm512_load_si512(right.add(unit * V + v).cast());
                }
                for (m, row) in whole.iter_mut().enumerate() {
                    let codes = left.add(m * rows.stride + 4 * unit).cast::<i32>().read_unaligned();
                    let codes = _mm512_set1_epi32(codes);
                    for (sum, vector) in row.iter_mut().zip(vectors) {
                        *sum = _mm512_dpbusd_epi32(*sum, codes, vector);
                    }
                }
            }
            for v in 0..V {
                let factors = _mm512_load_ps(right.add((UNITS + 1) * V + v).cast());
                for m in 0..M {
                    tile[m][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[m][v]), factors, tile[m][v]);
                }
            }
            right = right.add(BLOCK_LINES * V);
            left = left.add(4 * UNITS);
        }
        for (m, row) in tile.iter().enumerate() {
            let scale = _mm512_set1_ps(*rows.scales.add(m));
            for (v, sum) in row.iter().enumerate() {
                let place = sums.add((m * V + v) * LANES);
                let before = match begin {
                    Begin::Sums => _mm512_loadu_ps(place),
                    Begin::Zero => _mm512_setzero_ps(),
                };
                _mm512_storeu_ps(place, _mm512_fmadd_ps(scale, *sum, before));
            }
        }
    }
}

/// Sums up `blocks` blocks of `rows` rows times a packed NR micro-panel of `vectors` vectors in `sums`, which is row-major with `vectors * 16`
/// columns.
///
/// # Safety
/// The processor has AVX-512F and VNNI; the operands and `sums` are valid for the shapes.
pub(super) unsafe fn multiply(
    (rows, vectors): (usize, usize),
    blocks: usize,
    left: Rows,
    right: *const Line,
    begin: Begin,
    sums: *mut f32,
) {
    let mut row = 0;
    while row < rows {
        let height = match rows - row {
            TILE_ROWS.. => TILE_ROWS,
            2.. => 2,
            other => other,
        };
        // SAFETY: the caller's promise: the rows lie within the operand.
        unsafe {
            let left = Rows {
                codes: left.codes.add(row * left.stride),
                scales: left.scales.add(row),
                ..left
            };
            let sums = sums.add(row * vectors * LANES);
            match (height, vectors) {
                (4, 3) => tile::<4, 3>(blocks, left, right, begin, sums),
                (2, 3) => tile::<2, 3>(blocks, left, right, begin, sums),
                (1, 3) => tile::<1, 3>(blocks, left, right, begin, sums),
                (4, 2) => tile::<4, 2>(blocks, left, right, begin, sums),
                (2, 2) => tile::<2, 2>(blocks, left, right, begin, sums),
                (1, 2) => tile::<1, 2>(blocks, left, right, begin, sums),
                (4, 1) => tile::<4, 1>(blocks, left, right, begin, sums),
                (2, 1) => tile::<2, 1>(blocks, left, right, begin, sums),
                (1, 1) => tile::<1, 1>(blocks, left, right, begin, sums),
                _ => unreachable!("there is no tile of {height} rows and {vectors} vectors"),
            }
        }
        row += height;
    }
}
