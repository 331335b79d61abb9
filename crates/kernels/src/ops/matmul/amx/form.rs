//! The two forms in which the tiles take values.

use super::digits::{self, DIGITS, LEFT_FACTORS, RIGHT_FACTORS};
use super::layout::{LEFT_LINES, SLICE_ROWS};
use super::{left, pairs};
use crate::ops::element::Element;
use crate::ops::matmul::operand::Left;
use crate::ops::matmul::tile::Line;
use half::bf16;
use std::ops::Range;

/// Form that values are multiplied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// BF16.
    Pairs,
    /// Three digits.
    Digits,
}

/// Values of a left operand.
pub(crate) trait Operand: Element {
    const FORM: Form;
}

impl Operand for bf16 {
    const FORM: Form = Form::Pairs;
}

impl Operand for f32 {
    const FORM: Form = Form::Digits;
}

impl Form {
    /// Values of the summed dimension in a step.
    pub(crate) const fn step(self) -> usize {
        match self {
            Self::Pairs => pairs::STEP,
            Self::Digits => digits::STEP,
        }
    }

    /// Lines of a MR micro-panel of so many steps.
    pub(crate) const fn mr_panel_lines(self, steps: usize) -> usize {
        match self {
            Self::Pairs => steps * LEFT_LINES,
            Self::Digits => LEFT_FACTORS + steps * DIGITS * LEFT_LINES,
        }
    }

    /// Rows of a NR micro-panel of so many steps; a row has a line for each vector.
    pub(crate) const fn nr_panel_rows(self, steps: usize) -> usize {
        match self {
            Self::Pairs => steps * SLICE_ROWS,
            Self::Digits => RIGHT_FACTORS + steps * DIGITS * SLICE_ROWS,
        }
    }

    /// Lays out `steps` of the rows `rows`, at most [`STRIP_ROWS`](super::layout::STRIP_ROWS), of an operand of summed length `depth`.
    /// What lies beyond the operand is zero.
    ///
    /// # Safety
    /// The processor has the unit, and with it AVX-512F, BW, DQ, VL, BF16 and VBMI.
    pub(crate) unsafe fn pack_left<T: Element>(
        self,
        left: &Left<'_, T>,
        depth: usize,
        rows: Range<usize>,
        steps: Range<usize>,
        mr_panel: &mut [Line],
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match self {
                Self::Pairs => left::pack_pairs(left, depth, rows, steps, mr_panel),
                Self::Digits => left::pack_digits(left, depth, rows, steps, mr_panel),
            }
        }
    }
}
