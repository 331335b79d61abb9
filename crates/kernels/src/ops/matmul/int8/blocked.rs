//! Tasks of products of bytes, together with the other products of a sum: an adapter's, in pairs or F32 values.
//!
//! As in [`crate::ops::matmul::blocked`], a task packs a group of NR micro-panels and streams a range of rows past them. The summed dimension
//! is packed as a whole.

use super::ByteTerm;
use super::panel;
use super::tile::{self, Rows};
use crate::ops::element::Element;
use crate::ops::matmul::blocked::{Operand, pack_nr_panel};
use crate::ops::matmul::engine;
use crate::ops::matmul::finish;
use crate::ops::matmul::operand::{Product, Result, Term};
use crate::ops::matmul::pack::vectors;
use crate::ops::matmul::tile::{self as units, Begin, Line, MrPanel, PanelProduct, TILE};
use crate::ops::room::grow;
use crate::ops::simd::{Level, level};
use crate::thread_pool;
use peft_tune_core::plan::products::int8::BLOCK_LINES;
use peft_tune_core::plan::products::{LANES, MAX_TERMS, NR, VECTORS, task_shape, tile_height};
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    static NR_PANELS: RefCell<Vec<Line>> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    NR_PANELS.take();
}

/// Whether the processor has what the tiles need.
pub(super) fn is_available() -> bool {
    level() == Level::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// Computes the sum of `bytes` and `others`, (rows, columns), into `result`.
///
/// # Safety
/// [`is_available`]; `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<O: Element>(
    bytes: &[ByteTerm<'_>],
    others: &[Product<'_>],
    size: (usize, usize),
    result: Result<O>,
) {
    if let Some(others) = engine::pairs(others) {
        // SAFETY: the caller's promise; whoever makes pairs has AVX-512 BF16.
        return unsafe { run(bytes, &others, size, result) };
    }
    let wide: Vec<_> = others.iter().map(|product| engine::widened(product.left)).collect();
    let others: Vec<_> = others
        .iter()
        .zip(&wide)
        .map(|(product, values)| Term {
            left: engine::left(product, values),
            right: product.right,
        })
        .collect();
    // SAFETY: the caller's promise.
    unsafe { run::<f32, O>(bytes, &others, size, result) };
}

/// # Safety
/// As [`multiply`], and AVX-512 BF16 for other operands of BF16.
unsafe fn run<T: Operand, O: Element>(
    bytes: &[ByteTerm<'_>],
    others: &[Term<'_, T>],
    (rows, columns): (usize, usize),
    result: Result<O>,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let in_bytes = bytes.iter().map(|term| term.blocks() * BLOCK_LINES);
    let in_units = others.iter().map(units_of);
    let lines: usize = in_bytes.chain(in_units).sum();
    let (group, height) = task_shape(rows, columns, [lines; 2], thread_pool::threads_here());
    let (groups, heights) = (columns.div_ceil(group * NR), rows.div_ceil(height));
    let result = &result;
    thread_pool::for_each(groups * heights, |index| {
        let (column, row) = (index / heights * group * NR, index % heights * height);
        let task = Task {
            bytes,
            others,
            lines,
            rows: row..(row + height).min(rows),
            columns: column..(column + group * NR).min(columns),
        };
        NR_PANELS.with_borrow_mut(|nr_panels| {
            grow(nr_panels, task.columns.len().div_ceil(NR) * VECTORS * lines, Line::ZERO);
            // SAFETY: the caller's promise; tasks cover disjoint parts of the result.
            unsafe {
                task.pack(nr_panels);
                task.sweep(nr_panels, result);
            }
        });
    });
}

/// Units along the summed dimension of a term that is not of bytes.
fn units_of<T: Operand>(term: &Term<'_, T>) -> usize {
    term.right.depth().div_ceil(T::UNIT.values())
}

struct Task<'a, T> {
    bytes: &'a [ByteTerm<'a>],
    others: &'a [Term<'a, T>],
    /// Lines of a vector of a packed NR micro-panel.
    lines: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<T: Operand> Task<'_, T> {
    /// Packs the NR micro-panels one after the other, the terms one after the other in each.
    unsafe fn pack(&self, nr_panels: &mut [Line]) {
        let mut rest = nr_panels;
        for column in self.columns.clone().step_by(NR) {
            let vectors = vectors(self.columns.end, column);
            let (nr_panel, others) = rest.split_at_mut(self.lines * vectors);
            rest = others;
            let mut place = nr_panel;
            for term in self.bytes {
                let (part, others) = place.split_at_mut(term.blocks() * BLOCK_LINES * vectors);
                place = others;
                // SAFETY: the caller's promise is the same.
                unsafe { panel::pack(term, column, part) };
            }
            for term in self.others {
                let (part, others) = place.split_at_mut(units_of(term) * vectors);
                place = others;
                // SAFETY: the caller's promise is the same.
                unsafe { pack_nr_panel(&term.right, T::UNIT, column, 0..units_of(term), part) };
            }
        }
    }

    /// Streams the rows past the packed NR micro-panels.
    unsafe fn sweep<O: Element>(&self, nr_panels: &[Line], result: &Result<O>) {
        let narrow = vectors(self.columns.end, self.columns.start) == 1;
        let mut row = self.rows.start;
        while row < self.rows.end {
            let rows = row..row + tile_height(self.rows.end - row, if narrow { 1 } else { VECTORS });
            row = rows.end;
            let mut nr_panel = nr_panels.as_ptr();
            for column in self.columns.clone().step_by(NR) {
                // SAFETY: the caller's promise; the NR micro-panels were packed.
                unsafe {
                    self.tile(rows.clone(), column, nr_panel, result);
                    nr_panel = nr_panel.add(self.lines * vectors(self.columns.end, column));
                }
            }
        }
    }

    /// Multiplies one height of rows with one packed NR micro-panel.
    unsafe fn tile<O: Element>(&self, rows: Range<usize>, column: usize, mut right: *const Line, result: &Result<O>) {
        let vectors = vectors(self.columns.end, column);
        let size = (rows.len(), vectors);
        let mut sums = Sums([0.0; TILE]);
        let sums = &mut sums.0[..rows.len() * vectors * LANES];
        let mut begin = Begin::Zero;
        for term in self.bytes {
            let left = Rows {
                codes: term.left.codes[rows.start * term.left.stride..].as_ptr(),
                stride: term.left.stride,
                scales: term.left.scales[rows.start..].as_ptr(),
            };
            // SAFETY: the NR micro-panel was packed for these blocks, and the left operand has the rows.
            unsafe {
                tile::multiply(size, term.blocks(), left, right, begin, sums.as_mut_ptr());
                right = right.add(term.blocks() * BLOCK_LINES * vectors);
            }
            begin = Begin::Sums;
        }
        let mut pieces = [PanelProduct::NONE; MAX_TERMS];
        for (piece, term) in pieces.iter_mut().zip(self.others) {
            *piece = PanelProduct {
                units: units_of(term),
                left: MrPanel {
                    start: term.left.values[rows.start * term.left.stride..].as_ptr().cast(),
                    row: term.left.stride / T::UNIT.values(),
                    unit: 1,
                },
                right,
            };
            // SAFETY: the NR micro-panel was packed for these units.
            right = unsafe { right.add(units_of(term) * vectors) };
        }
        let columns = column..(column + NR).min(self.columns.end);
        // SAFETY: as above; these rows and columns belong to this task alone.
        unsafe {
            if !self.others.is_empty() {
                let pieces = &pieces[..self.others.len()];
                units::multiply(T::UNIT, size, pieces, begin, sums.as_mut_ptr());
            }
            finish::write(result, sums, rows.start, columns);
        }
    }
}

/// The sums of one tile.
#[repr(C, align(64))]
struct Sums([f32; TILE]);
