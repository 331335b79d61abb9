//! Small products of F32 matrices on one thread, for ops that are parallel already.

use super::form::Form;
use super::kernel::{Piece, Strip, Sums};
use super::layout::{LEFT_BYTES, PANEL, STRIP_ROWS, TILE_BYTES, VECTORS};
use super::right::{self, Panels, TASK_PANELS};
use super::unit::{ROW_BYTES, Tiles};
use crate::train::ops::matmul::finish;
use crate::train::ops::matmul::operand::{Left, Right, Side};
use crate::train::ops::matmul::serial::{Old, View};
use crate::train::ops::matmul::tile::{LANES, Line};
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
    let steps = left.columns.div_ceil(form.step());
    let target = old.target(result, right.columns);
    let (side, stride) = match left.column_stride {
        1 => (Side::Straight, left.row_stride),
        stride => (Side::Transposed, stride),
    };
    let values = left.values;
    let (rows, depth, left) = (left.rows, left.columns, Left { values, side, stride });
    SCRATCH.with_borrow_mut(|Scratch { strip, panels }| {
        strip.resize(strip.len().max(form.strip_lines(steps)), Line::ZERO);
        let stride = form.panel_rows(steps) * VECTORS;
        panels.resize(panels.len().max(right.columns.div_ceil(PANEL) * stride), Line::ZERO);
        // SAFETY: the caller's promise; nothing that runs below configures tiles.
        unsafe {
            pack(form, &right, steps, panels);
            let _tiles = Tiles::configure();
            for row in (0..rows).step_by(STRIP_ROWS) {
                let rows = row..(row + STRIP_ROWS).min(rows);
                form.pack_left(&left, depth, rows.clone(), 0..steps, strip);
                for column in (0..right.columns).step_by(PANEL) {
                    let columns = column..(column + PANEL).min(right.columns);
                    let vectors = columns.len().div_ceil(LANES);
                    let mut sums = Sums::new();
                    let sums = sums.start();
                    let upper = strip.as_ptr().cast::<u8>();
                    let left = Strip {
                        upper,
                        lower: upper.add(TILE_BYTES),
                        row: ROW_BYTES,
                        step: LEFT_BYTES,
                    };
                    let right = panels[column / PANEL * stride..].as_ptr();
                    form.multiply(std::iter::once(Piece { steps, left, right }), vectors, sums, true);
                    let sums = std::slice::from_raw_parts(sums, rows.len() * vectors * LANES);
                    finish::write(&target, sums, rows.start, columns);
                }
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
