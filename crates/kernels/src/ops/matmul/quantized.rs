//! Right operands that are widened while they are packed: the codes of a quantized weight.
//!
//! A NR micro-panel of the right operand takes 16 or 48 of its rows (or columns) and a bounded part of the summed dimension. That
//! block is widened into memory that the thread keeps, a few hundred kilobytes, and packed from there: the weight never
//! exists as a whole, and after the first product nothing is allocated.

use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::instructions::Instructions;
use super::operand::Source;
use super::order::Order;
use super::quantized_source::{CHECKED, QuantizedSource};
use super::tile::{Line, Unit};
use crate::ops::scratch::resize;

/// Memory that a thread keeps from one block to the next.
#[derive(Default)]
struct Scratch {
    single: Vec<f32>,
    pair: Vec<bf16>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// Packs the NR micro-panel of `source` that starts at `column`, as [`pack::NR micro-panel`].
///
/// # Safety
/// Requirements of [`pack::NR micro-panel`].
pub(super) unsafe fn nr_panel<I: Instructions>(
    source: &QuantizedSource<'_>,
    unit: Unit,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    let columns = column..(column + I::TILING.nr()).min(source.columns);
    let depth = units.start * unit.values()..(units.end * unit.values()).min(source.depth);
    // SAFETY: the caller's promise is the same.
    unsafe {
        match unit {
            Unit::Single => with_f32(source, columns, depth, |block| {
                I::nr_panel(block, unit, 0, 0..units.len(), nr_panel);
            }),
            Unit::Pair => with_bf16(source, columns, depth, |block| {
                I::nr_panel(block, unit, 0, 0..units.len(), nr_panel);
            }),
        }
    }
}

/// Calls `pack` with a block of `source`, widened into memory of this thread.
pub(super) fn with_f32<R>(
    source: &QuantizedSource<'_>,
    columns: Range<usize>,
    depth: Range<usize>,
    pack: impl FnOnce(&Source<'_, f32>) -> R,
) -> R {
    let (width, length) = (columns.len(), depth.len());
    let (rows, columns) = source.block(columns, depth);
    SCRATCH.with_borrow_mut(|Scratch { single, .. }| {
        resize(single, width * length, 0.0);
        source.values.fill_f32(rows, columns, single).expect(CHECKED);
        pack(&part(source, single, width, length))
    })
}

/// Packs as [`with_f32`] does, rounded.
pub(super) fn with_bf16<R>(
    source: &QuantizedSource<'_>,
    columns: Range<usize>,
    depth: Range<usize>,
    pack: impl FnOnce(&Source<'_, bf16>) -> R,
) -> R {
    let (width, length) = (columns.len(), depth.len());
    let (rows, columns) = source.block(columns, depth);
    SCRATCH.with_borrow_mut(|Scratch { pair, .. }| {
        resize(pair, width * length, bf16::ZERO);
        source.values.fill_bf16(rows, columns, pair).expect(CHECKED);
        pack(&part(source, pair, width, length))
    })
}

/// A widened block as an operand of its own.
fn part<'a, T>(source: &QuantizedSource<'_>, values: &'a [T], columns: usize, depth: usize) -> Source<'a, T> {
    Source {
        values,
        order: source.order,
        columns,
        depth,
        stride: match source.order {
            Order::Transposed => depth,
            Order::Straight => columns,
        },
        scale: source.scale,
    }
}
