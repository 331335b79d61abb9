//! The innermost loop on AMX: tiles of 16 x 16 whole numbers, one block of 64 codes at a time.
//!
//! One instruction (`tdpbssd`) multiplies and adds up a block of 64 codes of 16 rows and 16 columns. What it leaves are whole numbers, which
//! go through memory to F32 sums in sixteen registers, with the block's factors. While that is done for one block, the unit is at
//! the next one. The sums are added up in the order of the [VNNI tiles](super::tile) by the same instructions, and so have the same bits.
//!
//! The packed right operand is that of the VNNI tiles: the sixteen lines of a vector's codes are the rows of a tile. The left codes are
//! signed here, so that nothing has to be taken off again.

use super::panel::UNITS;
use super::tile::Rows;
use crate::ops::matmul::amx::{ROW_BYTES, TILE_ROWS, Tiles};
use crate::ops::matmul::tile::{Begin, LANES, Line};
use core::arch::x86_64::*;
use peft_tune_core::plan::products::int8::{AMX_ROWS, BLOCK_LINES};
use std::arch::asm;
use std::mem::MaybeUninit;

/// The whole numbers of one block.
#[repr(C, align(64))]
struct Whole(MaybeUninit<[i32; AMX_ROWS * LANES]>);

const _: () = assert!(AMX_ROWS == TILE_ROWS && LANES * size_of::<i32>() == ROW_BYTES);

/// Sums up `blocks` blocks of 16 rows times a packed NR micro-panel of `vectors` vectors in `sums`, which is row-major with `vectors * 16` columns.
///
/// # Safety
/// The processor has AVX-512F; the operands, whose left codes are signed, and `sums` are valid for the shapes.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply(
    _tiles: &Tiles,
    (blocks, vectors): (usize, usize),
    left: Rows,
    right: *const Line,
    begin: Begin,
    sums: *mut f32,
) {
    for vector in 0..vectors {
        // SAFETY: the caller's promise: a vector has its lines in every block.
        unsafe {
            let vector = (vector, vectors);
            column(vector, blocks, left, right, begin, sums);
        }
    }
}

/// Multiplies one of the vectors that [`multiply`] takes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn column(
    (vector, vectors): (usize, usize),
    blocks: usize,
    rows: Rows,
    right: *const Line,
    begin: Begin,
    sums: *mut f32,
) {
    let mut whole = [const { Whole(MaybeUninit::uninit()) }; 2];
    let mut sum = [_mm512_setzero_ps(); AMX_ROWS];
    // SAFETY: the caller's promise covers every address below.
    unsafe {
        let right = right.add(vector);
        let block = |number: usize| right.add(number * BLOCK_LINES * vectors);
        for number in 0..=blocks {
            if number < blocks {
                let codes = rows.codes.add(number * 4 * UNITS);
                start((codes, rows.stride), (block(number), vectors), &mut whole[number % 2]);
            }
            if let Some(before) = number.checked_sub(1) {
                let factors = _mm512_load_ps(block(before).add((UNITS + 1) * vectors).cast());
                // The unit has written them.
                let whole = whole[before % 2].0.as_ptr().cast::<i32>();
                for (row, sum) in sum.iter_mut().enumerate() {
                    let whole = _mm512_cvtepi32_ps(_mm512_load_si512(whole.add(row * LANES).cast()));
                    *sum = _mm512_fmadd_ps(whole, factors, *sum);
                }
            }
        }
        for (row, sum) in sum.iter().enumerate() {
            let place = sums.add((row * vectors + vector) * LANES);
            let before = match begin {
                Begin::Sums => _mm512_loadu_ps(place),
                Begin::Zero => _mm512_setzero_ps(),
            };
            let scale = _mm512_set1_ps(*rows.scales.add(row));
            _mm512_storeu_ps(place, _mm512_fmadd_ps(scale, *sum, before));
        }
    }
}

/// Has the unit multiply one block and write the whole numbers to `whole`.
///
/// # Safety
/// The tiles are configured; 16 rows of 64 codes and a vector's sixteen lines can be read.
#[inline]
unsafe fn start((codes, stride): (*const u8, usize), (lines, vectors): (*const Line, usize), whole: &mut Whole) {
    // SAFETY: the caller's promise. The compiler uses no tile registers by itself.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm1, [{codes} + {stride}*1]",
            "tileloadd tmm2, [{lines} + {apart}*1]",
            "tdpbssd tmm0, tmm1, tmm2",
            "tilestored [{whole} + {row}*1], tmm0",
            codes = in(reg) codes,
            stride = in(reg) stride,
            lines = in(reg) lines,
            apart = in(reg) vectors * ROW_BYTES,
            whole = in(reg) whole.0.as_mut_ptr(),
            row = in(reg) ROW_BYTES,
            options(nostack),
        );
    }
}

/// Adds tiles of 16 rows of sixteen pairs of BF16, one behind the other in `left`, times a packed NR micro-panel of `vectors` vectors to `sums`, as
/// [`multiply`] has them.
///
/// # Safety
/// The processor has AMX-BF16; the lines of all tiles in each vector and `sums` are valid for the shapes.
pub(super) unsafe fn add_pairs(_tiles: &Tiles, vectors: usize, left: &[Line], right: *const Line, sums: *mut f32) {
    for vector in 0..vectors {
        for (step, left) in left.as_chunks::<AMX_ROWS>().0.iter().enumerate() {
            // SAFETY: the caller's promise. The compiler uses no tile registers by itself.
            unsafe {
                asm!(
                    "tileloadd tmm3, [{sums} + {apart}*1]",
                    "tileloadd tmm4, [{left} + {row}*1]",
                    "tileloadd tmm5, [{lines} + {apart}*1]",
                    "tdpbf16ps tmm3, tmm4, tmm5",
                    "tilestored [{sums} + {apart}*1], tmm3",
                    sums = in(reg) sums.add(vector * LANES),
                    left = in(reg) left.as_ptr(),
                    lines = in(reg) right.add(step * AMX_ROWS * vectors + vector),
                    apart = in(reg) vectors * ROW_BYTES,
                    row = in(reg) ROW_BYTES,
                    options(nostack),
                );
            }
        }
    }
}
