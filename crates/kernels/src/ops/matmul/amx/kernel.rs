//! The innermost loops: 32 rows times one NR micro-panel, in tile registers.
//!
//! Registers 0 to 3 hold the sums: upper rows left and right, lower rows left and right; 4 and 5 hold the upper and lower
//! rows of the left operand, 6 and 7 both vectors of the right one. The assembler is written out because the compiler's
//! own forms of these instructions are not stable yet. It never uses tile registers by itself, so that the sums stay in them from
//! [`begin`] to [`end`].

use super::layout::{MR, NR, right_bytes};
use super::unit::{ROW_BYTES, TILE_ROWS};
use crate::ops::matmul::tile::Line;
use std::arch::asm;
use std::mem::MaybeUninit;

/// Addresses of the tiles of a MR micro-panel of the left operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct MrPanel {
    /// The first 16 rows of the first step.
    pub upper: *const u8,
    /// The second 16 rows.
    pub lower: *const u8,
    /// Bytes from one row to the next.
    pub row: usize,
    /// Bytes from one step to the next.
    pub step: usize,
}

/// Steps of a MR micro-panel times a packed NR micro-panel.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelProduct {
    pub steps: usize,
    pub left: MrPanel,
    pub right: *const Line,
}

/// Room for the sums of one tile of the result, F32 or integers.
#[repr(C, align(64))]
pub(super) struct Sums(MaybeUninit<[f32; MR * NR]>);

impl Sums {
    pub(super) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    pub(super) const fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Sets the sums to zero, or to what `sums` has: 32 rows of `vectors` vectors.
///
/// # Safety
/// The tiles are configured; `sums` can be read.
pub(super) unsafe fn begin(vectors: usize, sums: Option<*const f32>) {
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
/// Requirements of [`begin`]; `sums` can be written.
pub(super) unsafe fn end(vectors: usize, sums: *mut f32) {
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

/// Loads of the two tiles of the left operand.
macro_rules! left {
    () => {
        "tileloadd tmm4, [{upper} + {row}*1]\ntileloadd tmm5, [{lower} + {row}*1]"
    };
}

/// The tile of the NR micro-panel's first vector.
macro_rules! right_first {
    () => {
        "tileloadd tmm6, [{right} + {stride}*1]"
    };
}

/// Loads of the two tiles of a NR micro-panel of two vectors.
macro_rules! right {
    () => {
        "tileloadd tmm6, [{right} + {stride}*1]\ntileloadd tmm7, [{right} + {stride}*1 + 64]"
    };
}

/// The sums of the NR micro-panel's first vector.
macro_rules! multiply_first {
    ($product:literal) => {
        concat!($product, " tmm0, tmm4, tmm6\n", $product, " tmm2, tmm5, tmm6")
    };
}

/// The sums of both vectors.
macro_rules! multiply {
    ($product:literal) => {
        concat!(
            multiply_first!($product),
            "\n",
            $product,
            " tmm1, tmm4, tmm7\n",
            $product,
            " tmm3, tmm5, tmm7"
        )
    };
}

macro_rules! step {
    ($left:expr, $right:expr, $vectors:literal, [$($line:expr),+ $(,)?]) => {{
        asm!(
            $($line,)+
            upper = in(reg) $left.upper,
            lower = in(reg) $left.lower,
            right = in(reg) $right,
            row = in(reg) $left.row,
            stride = in(reg) $vectors * ROW_BYTES,
            options(nostack, readonly),
        )
    }};
}

/// Kind of values that the operands hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pairs of BF16; sums are F32.
    Pairs,
    /// Fours of digits; sums are integers of 32 bits.
    Digits,
}

/// Adds a piece to the sums of `vectors` vectors (1 or 2), and calls `between` after each step: the tiles continue
/// meanwhile.
///
/// # Safety
/// Requirements of [`begin`]; the operands are packed for these steps and vectors.
#[inline]
pub(super) unsafe fn add(piece: &PanelProduct, kind: Kind, vectors: usize, mut between: impl FnMut()) {
    let PanelProduct {
        steps,
        mut left,
        mut right,
    } = *piece;
    for _ in 0..steps {
        // SAFETY: the caller's promise.
        unsafe {
            match (kind, vectors) {
                (Kind::Pairs, 1) => step!(left, right, 1, [right_first!(), left!(), multiply_first!("tdpbf16ps")]),
                (Kind::Pairs, _) => step!(left, right, 2, [right!(), left!(), multiply!("tdpbf16ps")]),
                (Kind::Digits, 1) => step!(left, right, 1, [right_first!(), left!(), multiply_first!("tdpbssd")]),
                (Kind::Digits, _) => step!(left, right, 2, [right!(), left!(), multiply!("tdpbssd")]),
            }
        }
        between();
        left.upper = left.upper.wrapping_add(left.step);
        left.lower = left.lower.wrapping_add(left.step);
        right = right.wrapping_byte_add(right_bytes(vectors));
    }
}
