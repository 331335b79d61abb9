//! Small products of F32 matrices on one thread, for ops that are parallel already.

use super::form::{Form, Operand};
use super::kernel::{Piece, Strip};
use super::layout::{LEFT_BYTES, PANEL, STRIP_ROWS, TILE_BYTES, VECTORS};
use super::right::{self, Panels, TASK_PANELS};
use super::stream::{Pass, Stream, Tile};
use super::unit::{ROW_BYTES, Tiles};
use crate::train::ops::matmul::operand::{Left, Right, Side};
use crate::train::ops::matmul::serial::{Old, View};
use crate::train::ops::matmul::tile::Line;
use crate::train::ops::room::grow;
use half::bf16;
use std::cell::RefCell;

/// Memory that a thread keeps from one product to the next.
#[derive(Default)]
struct Scratch {
    strip: Vec<Line>,
    panels: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lets go of what this thread keeps.
pub fn forget() {
    SCRATCH.take();
}

/// left times right into `result` (row-major); as pairs both are rounded to BF16.
///
/// # Safety
/// The unit is available; the views lie within their values, and the result has room for them.
pub unsafe fn multiply(form: Form, left: View<'_>, right: View<'_>, result: &mut [f32], old: Old) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match form {
            Form::Pairs => multiply_as::<bf16>(left, right, result, old),
            Form::Digits => multiply_as::<f32>(left, right, result, old),
        }
    }
}

/// As [`multiply`], in the form of `T`.
unsafe fn multiply_as<T: Operand>(left: View<'_>, right: View<'_>, result: &mut [f32], old: Old) {
    let form = T::FORM;
    let steps = left.columns.div_ceil(form.step());
    let target = old.target(result, right.columns);
    let (side, stride) = match left.column_stride {
        1 => (Side::Straight, left.row_stride),
        stride => (Side::Transposed, stride),
    };
    let values = left.values;
    let (rows, depth, left) = (left.rows, left.columns, Left { values, side, stride });
    SCRATCH.with_borrow_mut(|Scratch { strip, panels }| {
        grow(strip, form.strip_lines(steps), Line::ZERO);
        let stride = form.panel_rows(steps) * VECTORS;
        grow(panels, right.columns.div_ceil(PANEL) * stride, Line::ZERO);
        let mut stream = Stream::<T, f32>::new(&target, &[]);
        // SAFETY: the caller's promise; nothing that runs below configures tiles.
        unsafe {
            pack(form, &right, steps, panels);
            let _tiles = Tiles::configure();
            for row in (0..rows).step_by(STRIP_ROWS) {
                let end = (row + STRIP_ROWS).min(rows);
                form.pack_left(&left, depth, row..end, 0..steps, strip);
                let upper = strip.as_ptr().cast::<u8>();
                let left = Strip {
                    upper,
                    lower: upper.add(TILE_BYTES),
                    row: ROW_BYTES,
                    step: LEFT_BYTES,
                };
                for column in (0..right.columns).step_by(PANEL) {
                    let tile = Tile {
                        row,
                        rows: end - row,
                        columns: column..(column + PANEL).min(right.columns),
                    };
                    let right = panels[column / PANEL * stride..].as_ptr();
                    stream.multiply(&tile, Pass::ONLY, std::iter::once(Piece { steps, left, right }));
                }
                // The next strip takes the place of this one.
                stream.end();
            }
        }
    });
}

/// Packs all panels of the right operand.
unsafe fn pack(form: Form, right: &View<'_>, steps: usize, lines: &mut [Line]) {
    let stride = form.panel_rows(steps) * VECTORS;
    let tasks = lines.chunks_mut(TASK_PANELS * stride.max(1));
    for (lines, column) in tasks.zip((0..right.columns).step_by(TASK_PANELS * PANEL)) {
        let mut panels = Panels {
            lines,
            columns: column..(column + TASK_PANELS * PANEL).min(right.columns),
            stride,
            before: 0,
        };
        // SAFETY: the caller's promise is the same.
        unsafe { right::pack(form, &Right::F32(right.source()), 0..steps, &mut panels) };
    }
}
