//! The innermost loops: 32 rows times one panel, in tile registers.
//!
//! Registers 0 to 3 hold the sums: upper rows left and right, lower rows left and right; 4 and 5 hold the upper and lower
//! rows of the left operand, 6 and 7 both vectors of the right one. The assembler is written out because the compiler's
//! own forms of these instructions are not stable yet. It never uses tile registers by itself, so that the sums stay in them from
//! [`begin`] to [`end`].

use super::layout::{PART_LEFT_BYTES, TILE_BYTES, part_right_bytes};
use super::unit::{ROW_BYTES, TILE_ROWS};
use crate::train::ops::matmul::tile::Line;
use std::arch::asm;

/// Where the tiles of a strip of the left operand lie.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    /// The first 16 rows of the first step.
    pub upper: *const u8,
    /// The second 16 rows.
    pub lower: *const u8,
    /// Bytes from one row to the next.
    pub row: usize,
    /// Bytes from one step to the next.
    pub step: usize,
}

/// Steps of a strip times a packed panel.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub steps: usize,
    pub left: Strip,
    pub right: *const Line,
}

/// Sets the sums to zero, or to what `sums` has: 32 rows of `vectors` vectors.
///
/// # Safety
/// The tiles are configured; `sums` can be read.
pub unsafe fn begin(vectors: usize, sums: Option<*const f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (sums, vectors) {
            (None, _) => asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem)
            ),
            (Some(sums), 1) => asm!(
                "tileloadd tmm0, [{upper} + {stride}*1]",
                "tileloadd tmm2, [{lower} + {stride}*1]",
                upper = in(reg) sums,
                lower = in(reg) sums.byte_add(TILE_ROWS * ROW_BYTES),
                stride = in(reg) ROW_BYTES,
                options(nostack, readonly),
            ),
            (Some(sums), _) => asm!(
                "tileloadd tmm0, [{upper} + {stride}*1]",
                "tileloadd tmm1, [{upper} + {stride}*1 + 64]",
                "tileloadd tmm2, [{lower} + {stride}*1]",
                "tileloadd tmm3, [{lower} + {stride}*1 + 64]",
                upper = in(reg) sums,
                lower = in(reg) sums.byte_add(TILE_ROWS * 2 * ROW_BYTES),
                stride = in(reg) 2 * ROW_BYTES,
                options(nostack, readonly),
            ),
        }
    }
}

/// Writes the sums: 32 rows of `vectors` vectors.
///
/// # Safety
/// As [`begin`]; `sums` can be written.
pub unsafe fn end(vectors: usize, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            1 => asm!(
                "tilestored [{upper} + {stride}*1], tmm0",
                "tilestored [{lower} + {stride}*1], tmm2",
                upper = in(reg) sums,
                lower = in(reg) sums.byte_add(TILE_ROWS * ROW_BYTES),
                stride = in(reg) ROW_BYTES,
                options(nostack),
            ),
            _ => asm!(
                "tilestored [{upper} + {stride}*1], tmm0",
                "tilestored [{upper} + {stride}*1 + 64], tmm1",
                "tilestored [{lower} + {stride}*1], tmm2",
                "tilestored [{lower} + {stride}*1 + 64], tmm3",
                upper = in(reg) sums,
                lower = in(reg) sums.byte_add(TILE_ROWS * 2 * ROW_BYTES),
                stride = in(reg) 2 * ROW_BYTES,
                options(nostack),
            ),
        }
    }
}

/// Parts of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    One,
    /// Three of both.
    Three,
    /// Three of both, but of the right operand's all but the first are zero.
    ThreeAndFirst,
}

impl Parts {
    /// That many of both.
    pub const fn of(parts: usize) -> Self {
        match parts {
            1 => Self::One,
            _ => Self::Three,
        }
    }

    /// The same where the right operand's second and third parts are zero.
    pub const fn with_first_right(self) -> Self {
        match self {
            Self::One => Self::One,
            _ => Self::ThreeAndFirst,
        }
    }
}

/// Adds a piece to the sums of `vectors` vectors (1 or 2).
///
/// # Safety
/// As [`begin`]; the operands are packed for these steps, parts and vectors.
pub unsafe fn add(piece: &Piece, parts: Parts, vectors: usize) {
    if piece.steps == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (parts, vectors) {
            (Parts::One, 1) => add_narrow(piece),
            (Parts::One, _) => add_whole(piece),
            (Parts::Three, 1) => add_narrow_parts(piece),
            (Parts::Three, _) => add_parts(piece),
            (Parts::ThreeAndFirst, 1) => add_narrow_left_parts(piece),
            (Parts::ThreeAndFirst, _) => add_left_parts(piece),
        }
    }
}

macro_rules! steps {
    ($piece:expr, $vectors:literal, $parts:literal, [$($line:literal),+ $(,)?]) => {{
        let Piece { steps, left, right } = $piece;
        asm!(
            "2:",
            $($line,)+
            "add {upper}, {step}",
            "add {lower}, {step}",
            "add {right}, {right_step}",
            "dec {steps}",
            "jnz 2b",
            upper = inout(reg) left.upper => _,
            lower = inout(reg) left.lower => _,
            right = inout(reg) *right => _,
            steps = inout(reg) *steps => _,
            row = in(reg) left.row,
            step = in(reg) left.step,
            stride = in(reg) $vectors * ROW_BYTES,
            right_step = const $parts * part_right_bytes($vectors),
            options(nostack, readonly),
        )
    }};
}

unsafe fn add_whole(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            2,
            1,
            [
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tileloadd tmm4, [{upper} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{right} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
            ]
        );
    }
}

unsafe fn add_narrow(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            1,
            1,
            [
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tileloadd tmm4, [{upper} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
            ]
        );
    }
}

// Parts lie one after the other, high, middle, low: those of the left operand 2 KiB apart, those of a panel of two
// vectors too, those of a narrow one 1 KiB. Each change of operands loads no more than one side anew.
const _: () = assert!(PART_LEFT_BYTES == 2048 && part_right_bytes(2) == 2048 && part_right_bytes(1) == 1024);
const _: () = assert!(TILE_BYTES == 1024);

unsafe fn add_parts(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            2,
            3,
            [
                // Low rows, high columns.
                "tileloadd tmm4, [{upper} + {row}*1 + 4096]",
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{right} + 6144]",
                "prefetcht0 [{right} + 6208]",
                "prefetcht0 [{right} + 6272]",
                "prefetcht0 [{right} + 6336]",
                "tileloadd tmm5, [{lower} + {row}*1 + 4096]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{right} + 6400]",
                "prefetcht0 [{right} + 6464]",
                "prefetcht0 [{right} + 6528]",
                "prefetcht0 [{right} + 6592]",
                "tileloadd tmm7, [{right} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht0 [{right} + 6656]",
                "prefetcht0 [{right} + 6720]",
                "prefetcht0 [{right} + 6784]",
                "prefetcht0 [{right} + 6848]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{right} + 6912]",
                "prefetcht0 [{right} + 6976]",
                "prefetcht0 [{right} + 7040]",
                "prefetcht0 [{right} + 7104]",
                // Middle rows, high columns.
                "tileloadd tmm4, [{upper} + {row}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{right} + 7168]",
                "prefetcht0 [{right} + 7232]",
                "prefetcht0 [{right} + 7296]",
                "prefetcht0 [{right} + 7360]",
                "tileloadd tmm5, [{lower} + {row}*1 + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{right} + 7424]",
                "prefetcht0 [{right} + 7488]",
                "prefetcht0 [{right} + 7552]",
                "prefetcht0 [{right} + 7616]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht0 [{right} + 7680]",
                "prefetcht0 [{right} + 7744]",
                "prefetcht0 [{right} + 7808]",
                "prefetcht0 [{right} + 7872]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{right} + 7936]",
                "prefetcht0 [{right} + 8000]",
                "prefetcht0 [{right} + 8064]",
                "prefetcht0 [{right} + 8128]",
                // Middle rows, middle columns.
                "tileloadd tmm6, [{right} + {stride}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{right} + 8192]",
                "prefetcht0 [{right} + 8256]",
                "prefetcht0 [{right} + 8320]",
                "prefetcht0 [{right} + 8384]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{right} + 8448]",
                "prefetcht0 [{right} + 8512]",
                "prefetcht0 [{right} + 8576]",
                "prefetcht0 [{right} + 8640]",
                "tileloadd tmm7, [{right} + {stride}*1 + 2112]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht0 [{right} + 8704]",
                "prefetcht0 [{right} + 8768]",
                "prefetcht0 [{right} + 8832]",
                "prefetcht0 [{right} + 8896]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{right} + 8960]",
                "prefetcht0 [{right} + 9024]",
                "prefetcht0 [{right} + 9088]",
                "prefetcht0 [{right} + 9152]",
                // High rows, middle columns.
                "tileloadd tmm4, [{upper} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{right} + 9216]",
                "prefetcht0 [{right} + 9280]",
                "prefetcht0 [{right} + 9344]",
                "prefetcht0 [{right} + 9408]",
                "tileloadd tmm5, [{lower} + {row}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{right} + 9472]",
                "prefetcht0 [{right} + 9536]",
                "prefetcht0 [{right} + 9600]",
                "prefetcht0 [{right} + 9664]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht0 [{right} + 9728]",
                "prefetcht0 [{right} + 9792]",
                "prefetcht0 [{right} + 9856]",
                "prefetcht0 [{right} + 9920]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{right} + 9984]",
                "prefetcht0 [{right} + 10048]",
                "prefetcht0 [{right} + 10112]",
                "prefetcht0 [{right} + 10176]",
                // High rows, low columns.
                "tileloadd tmm6, [{right} + {stride}*1 + 4096]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{right} + 10240]",
                "prefetcht0 [{right} + 10304]",
                "prefetcht0 [{right} + 10368]",
                "prefetcht0 [{right} + 10432]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{right} + 10496]",
                "prefetcht0 [{right} + 10560]",
                "prefetcht0 [{right} + 10624]",
                "prefetcht0 [{right} + 10688]",
                "tileloadd tmm7, [{right} + {stride}*1 + 4160]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht0 [{right} + 10752]",
                "prefetcht0 [{right} + 10816]",
                "prefetcht0 [{right} + 10880]",
                "prefetcht0 [{right} + 10944]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{right} + 11008]",
                "prefetcht0 [{right} + 11072]",
                "prefetcht0 [{right} + 11136]",
                "prefetcht0 [{right} + 11200]",
                // High rows, high columns.
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{right} + 11264]",
                "prefetcht0 [{right} + 11328]",
                "prefetcht0 [{right} + 11392]",
                "prefetcht0 [{right} + 11456]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{right} + 11520]",
                "prefetcht0 [{right} + 11584]",
                "prefetcht0 [{right} + 11648]",
                "prefetcht0 [{right} + 11712]",
                "tileloadd tmm7, [{right} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht0 [{right} + 11776]",
                "prefetcht0 [{right} + 11840]",
                "prefetcht0 [{right} + 11904]",
                "prefetcht0 [{right} + 11968]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{right} + 12032]",
                "prefetcht0 [{right} + 12096]",
                "prefetcht0 [{right} + 12160]",
                "prefetcht0 [{right} + 12224]",
            ]
        );
    }
}

unsafe fn add_narrow_parts(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            1,
            3,
            [
                "tileloadd tmm4, [{upper} + {row}*1 + 4096]",
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1 + 4096]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm4, [{upper} + {row}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1 + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{right} + {stride}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tileloadd tmm4, [{upper} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {row}*1]",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tileloadd tmm7, [{right} + {stride}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
            ]
        );
    }
}

unsafe fn add_left_parts(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            2,
            3,
            [
                "tileloadd tmm4, [{upper} + {row}*1 + 4096]",
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1 + 4096]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{right} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{upper} + {row}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1 + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{upper} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
            ]
        );
    }
}

unsafe fn add_narrow_left_parts(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            1,
            3,
            [
                "tileloadd tmm4, [{upper} + {row}*1 + 4096]",
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1 + 4096]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm4, [{upper} + {row}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1 + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm4, [{upper} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{lower} + {row}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
            ]
        );
    }
}
