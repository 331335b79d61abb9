//! Small products of F32 matrices on one thread, for ops that are parallel already.

use super::form::{Form, Operand};
use super::kernel::{MrPanel, PanelProduct};
use super::layout::{LEFT_BYTES, MR, NR, TILE_BYTES, VECTORS};
use super::right::{self, NrPanels, TASK_NR_PANELS};
use super::stream::{KcBlock, Stream, Tile};
use super::unit::{ROW_BYTES, Tiles};
use crate::ops::matmul::operand::{Left, Right, Side};
use crate::ops::matmul::tile::Line;
use crate::ops::matmul::view::{Old, View};
use crate::ops::scratch::grow;
use half::bf16;
use std::cell::RefCell;

/// Memory that a thread keeps from one product to the next.
#[derive(Default)]
struct Scratch {
    mr_panel: Vec<Line>,
    nr_panels: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// left times right into `result` (row-major); as pairs both are rounded to BF16.
///
/// # Safety
/// The unit is available; the views lie within their values, and the result has room for them.
pub(crate) unsafe fn multiply(form: Form, left: View<'_>, right: View<'_>, result: &mut [f32], old: Old) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match form {
            Form::Pairs => multiply_as::<bf16>(left, right, result, old),
            Form::Digits => multiply_as::<f32>(left, right, result, old),
        }
    }
}

/// Multiplies as [`multiply`] does, in the form of `T`.
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
    SCRATCH.with_borrow_mut(|Scratch { mr_panel, nr_panels }| {
        grow(mr_panel, form.mr_panel_lines(steps), Line::ZERO);
        let stride = form.nr_panel_rows(steps) * VECTORS;
        grow(nr_panels, right.columns.div_ceil(NR) * stride, Line::ZERO);
        let mut stream = Stream::<T, f32>::new(&target, &[]);
        // SAFETY: the caller's promise; nothing that runs below configures tiles.
        unsafe {
            pack(form, &right, steps, nr_panels);
            let _tiles = Tiles::configure();
            for row in (0..rows).step_by(MR) {
                let end = (row + MR).min(rows);
                form.pack_left(&left, depth, row..end, 0..steps, mr_panel);
                let upper = mr_panel.as_ptr().cast::<u8>();
                let left = MrPanel {
                    upper,
                    lower: upper.add(TILE_BYTES),
                    row: ROW_BYTES,
                    step: LEFT_BYTES,
                };
                for column in (0..right.columns).step_by(NR) {
                    let tile = Tile {
                        row,
                        rows: end - row,
                        columns: column..(column + NR).min(right.columns),
                    };
                    let right = nr_panels[column / NR * stride..].as_ptr();
                    stream.multiply(
                        &tile,
                        KcBlock::ONLY,
                        std::iter::once(PanelProduct { steps, left, right }),
                    );
                }
                // The next MR micro-panel takes the place of this one.
                stream.end();
            }
        }
    });
}

/// Packs all NR micro-panels of the right operand.
unsafe fn pack(form: Form, right: &View<'_>, steps: usize, lines: &mut [Line]) {
    let stride = form.nr_panel_rows(steps) * VECTORS;
    let tasks = lines.chunks_mut(TASK_NR_PANELS * stride.max(1));
    for (lines, column) in tasks.zip((0..right.columns).step_by(TASK_NR_PANELS * NR)) {
        let mut nr_panels = NrPanels {
            lines,
            columns: column..(column + TASK_NR_PANELS * NR).min(right.columns),
            stride,
            before: 0,
        };
        // SAFETY: the caller's promise is the same.
        unsafe { right::pack(form, &Right::F32(right.source()), 0..steps, &mut nr_panels) };
    }
}
