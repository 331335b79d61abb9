//! The innermost loops: 32 rows times one panel, in tile registers.
//!
//! Registers 0 to 3 hold the sums: upper rows left and right, lower rows left and right; 4 and 5 hold the upper and lower
//! rows of the left operand, 6 and 7 both vectors of the right one. The assembler is written out because the compiler's
//! own forms of these instructions are not stable yet. It never uses tile registers by itself, so that the sums stay in them from
//! [`begin`] to [`end`].

use super::layout::{PANEL, PART_LEFT_BYTES, STRIP_ROWS, TILE_BYTES, part_right_bytes};
use super::unit::{ROW_BYTES, TILE_ROWS};
use crate::train::ops::matmul::tile::Line;
use std::arch::asm;
use std::mem::MaybeUninit;

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

/// Room for the sums of one tile of the result.
#[repr(C, align(64))]
pub struct Sums(MaybeUninit<[f32; STRIP_ROWS * PANEL]>);

impl Sums {
    pub const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    pub const fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
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

// Parts lie one after the other, high, middle, low: those of the left operand 2 KiB apart, those of a panel of two
// vectors too, those of a narrow one 1 KiB.
const _: () = assert!(PART_LEFT_BYTES == 2048 && part_right_bytes(2) == 2048 && part_right_bytes(1) == 1024);
const _: () = assert!(TILE_BYTES == 1024);

/// Both tiles of the left operand, from an offset in bytes.
macro_rules! left {
    ($offset:literal) => {
        concat!(
            "tileloadd tmm4, [{upper} + {row}*1 + ",
            $offset,
            "]\n",
            "tileloadd tmm5, [{lower} + {row}*1 + ",
            $offset,
            "]"
        )
    };
}

/// The tile of the panel's first vector.
macro_rules! right_first {
    ($offset:literal) => {
        concat!("tileloadd tmm6, [{right} + {stride}*1 + ", $offset, "]")
    };
}

/// Both tiles of a panel of two vectors.
macro_rules! right {
    ($offset:literal) => {
        concat!(
            right_first!($offset),
            "\ntileloadd tmm7, [{right} + {stride}*1 + 64 + ",
            $offset,
            "]"
        )
    };
}

/// The sums of the panel's first vector.
macro_rules! multiply_first {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6\ntdpbf16ps tmm2, tmm5, tmm6"
    };
}

/// The sums of both vectors.
macro_rules! multiply {
    () => {
        concat!(
            multiply_first!(),
            "\ntdpbf16ps tmm1, tmm4, tmm7\ntdpbf16ps tmm3, tmm5, tmm7"
        )
    };
}

/// Asks for 1 KiB of the panel's next step of three parts.
macro_rules! fetch {
    ($offset:literal) => {
        concat!(
            ".irp line, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960\n",
            "prefetcht0 [{right} + 6144 + ",
            $offset,
            " + \\line]\n",
            ".endr"
        )
    };
}

macro_rules! steps {
    ($piece:expr, $vectors:literal, $parts:literal, [$($line:expr),+ $(,)?]) => {{
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
    unsafe { steps!(piece, 2, 1, [right!(0), left!(0), multiply!()]) }
}

unsafe fn add_narrow(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe { steps!(piece, 1, 1, [right_first!(0), left!(0), multiply_first!()]) }
}

// Each change of operands loads one side anew. Rows and columns are low, middle or high: low x high, middle x high, middle
// x middle, high x middle, high x low, high x high.
unsafe fn add_parts(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            2,
            3,
            [
                left!(4096),
                right!(0),
                multiply!(),
                fetch!(0),
                left!(2048),
                multiply!(),
                fetch!(1024),
                right!(2048),
                multiply!(),
                fetch!(2048),
                left!(0),
                multiply!(),
                fetch!(3072),
                right!(4096),
                multiply!(),
                fetch!(4096),
                right!(0),
                multiply!(),
                fetch!(5120),
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
                left!(4096),
                right_first!(0),
                multiply_first!(),
                left!(2048),
                multiply_first!(),
                right_first!(1024),
                multiply_first!(),
                left!(0),
                multiply_first!(),
                right_first!(2048),
                multiply_first!(),
                right_first!(0),
                multiply_first!(),
            ]
        );
    }
}

// Low, middle and high rows times the columns' only part.
unsafe fn add_left_parts(piece: &Piece) {
    // SAFETY: the caller's promise.
    unsafe {
        steps!(
            piece,
            2,
            3,
            [
                right!(0),
                left!(4096),
                multiply!(),
                left!(2048),
                multiply!(),
                left!(0),
                multiply!()
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
                right_first!(0),
                left!(4096),
                multiply_first!(),
                left!(2048),
                multiply_first!(),
                left!(0),
                multiply_first!()
            ]
        );
    }
}
