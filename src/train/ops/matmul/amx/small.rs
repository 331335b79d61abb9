//! Small products on one thread, for ops that are parallel already; both operands are F32 and rounded to BF16 on the way.

use super::kernel::{self, Parts, Piece, Strip, Sums};
use super::layout::{PANEL, PART_LEFT_BYTES, PART_LEFT_LINES, STEP, STRIP_ROWS, TILE_BYTES, VECTORS, part_right_lines};
use super::left;
use super::right::{self, Panels};
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

/// left times right, both rounded to BF16, into `result` (row-major).
///
/// # Safety
/// The unit is available; the views lie within their values, and the result has room for them.
pub unsafe fn multiply(left: View<'_>, right: View<'_>, result: &mut [f32], old: Old) {
    let steps = left.columns.div_ceil(STEP);
    let target = old.target(result, right.columns);
    let (side, stride) = match left.column_stride {
        1 => (Side::Straight, left.row_stride),
        stride => (Side::Transposed, stride),
    };
    let values = left.values;
    let (rows, depth, left) = (left.rows, left.columns, Left { values, side, stride });
    SCRATCH.with_borrow_mut(|Scratch { strip, panels }| {
        strip.resize(strip.len().max(steps * PART_LEFT_LINES), Line::ZERO);
        let lines = right.columns.div_ceil(PANEL) * steps * part_right_lines(VECTORS);
        panels.resize(panels.len().max(lines), Line::ZERO);
        // SAFETY: the caller's promise; nothing that runs below configures tiles.
        unsafe {
            pack(&right, steps, panels);
            let _tiles = Tiles::configure();
            for row in (0..rows).step_by(STRIP_ROWS) {
                let rows = row..(row + STRIP_ROWS).min(rows);
                left::pack_parts::<_, 1>(&left, depth, rows.clone(), 0..steps, strip);
                for column in (0..right.columns).step_by(PANEL) {
                    let panel = &panels[column / PANEL * steps * part_right_lines(VECTORS)..];
                    let columns = column..(column + PANEL).min(right.columns);
                    let vectors = columns.len().div_ceil(LANES);
                    let mut sums = Sums::new();
                    let sums = sums.start();
                    let upper = strip.as_ptr().cast::<u8>();
                    kernel::begin(vectors, None);
                    let left = Strip {
                        upper,
                        lower: upper.add(TILE_BYTES),
                        row: ROW_BYTES,
                        step: PART_LEFT_BYTES,
                    };
                    let right = panel.as_ptr();
                    kernel::add(&Piece { steps, left, right }, Parts::One, vectors);
                    kernel::end(vectors, sums);
                    let sums = std::slice::from_raw_parts(sums, rows.len() * vectors * LANES);
                    finish::write(&target, sums, rows.start, columns);
                }
            }
        }
    });
}

/// Packs all panels of the right operand.
unsafe fn pack(right: &View<'_>, steps: usize, lines: &mut [Line]) {
    let mut panels = Panels {
        lines,
        columns: 0..right.columns,
        stride: steps * part_right_lines(VECTORS),
        before: 0,
    };
    // SAFETY: the caller's promise is the same.
    unsafe { right::pack::<1>(&Right::F32(right.source()), 0..steps, &mut panels) };
}
