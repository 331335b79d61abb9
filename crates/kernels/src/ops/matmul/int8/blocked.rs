//! Tasks of products of bytes, together with the other products of a sum: an adapter's, in pairs or F32 values.
//!
//! As in [`crate::ops::matmul::blocked`], a task packs a group of NR micro-panels and streams a range of rows past them. The summed dimension
//! is packed as a whole.

use super::panel;
use super::tile::{self, Rows};
use super::tiles;
use super::{ByteTerm, Form};
use crate::ops::element::Element;
use crate::ops::matmul::amx::Tiles;
use crate::ops::matmul::avx512::Avx512;
use crate::ops::matmul::blocked::pack_nr_panel;
use crate::ops::matmul::finish;
use crate::ops::matmul::operand::{Product, Result, Term};
use crate::ops::matmul::pack::vectors;
use crate::ops::matmul::terms;
use crate::ops::matmul::tile::{self as units, Begin, Line, MrPanel, PanelProduct};
use crate::ops::matmul::unit_operand::Operand;
use crate::ops::scratch::grow;
use crate::ops::simd::{Level, level};
use crate::thread_pool;
use peft_tune_core::plan::products::int8::{AMX_ROWS, BLOCK_LINES, amx_task_rows};
use peft_tune_core::plan::products::{LANES, MAX_TERMS, NR, Tiling, VECTORS};
use std::cell::RefCell;
use std::ops::Range;

// Tasks begin at whole tiles of AMX: only the last one of the rows is cut, and the left codes have room for all of it.
const _: () = assert!((2 * Tiling::AVX512.rows).is_multiple_of(AMX_ROWS));

/// Memory that a thread keeps from one task to the next.
#[derive(Default)]
struct Scratch {
    nr_panels: Vec<Line>,
    /// Rows of the other terms' left operands as tiles of pairs.
    pairs: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// Whether the processor has what the tiles of VNNI need, which those of AMX fall back to.
pub(super) fn is_available() -> bool {
    level() == Level::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// Computes the sum of `bytes` and `others`, (rows, columns), into `result`, on AMX where the left codes are laid out for it.
///
/// # Safety
/// [`is_available`], and AMX for its form; `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<O: Element>(
    form: Form,
    bytes: &[ByteTerm<'_>],
    others: &[Product<'_>],
    size: (usize, usize),
    result: Result<O>,
) {
    if let Some(others) = terms::pairs(others) {
        // SAFETY: the caller's promise; whoever makes pairs has AVX-512 BF16.
        return unsafe { run(form, bytes, &others, size, result) };
    }
    let wide = terms::wide(others);
    let others = terms::wide_terms(others, &wide);
    // SAFETY: the caller's promise.
    unsafe { run::<f32, O>(form, bytes, &others, size, result) };
}

/// # Safety
/// Requirements of [`multiply`], and AVX-512 BF16 for other operands of BF16.
unsafe fn run<T: Operand, O: Element>(
    form: Form,
    bytes: &[ByteTerm<'_>],
    others: &[Term<'_, T>],
    (rows, columns): (usize, usize),
    result: Result<O>,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let in_bytes = bytes.iter().map(|term| term.blocks() * BLOCK_LINES);
    let in_units = others.iter().map(|term| packed_units(form, term));
    let lines: usize = in_bytes.chain(in_units).sum();
    let (group, mut height) = Tiling::AVX512.task_shape(rows, columns, [lines; 2], thread_pool::threads_here());
    if form == Form::Amx {
        height = amx_task_rows(rows, height, columns.div_ceil(group * NR), thread_pool::threads_here());
    }
    let (groups, heights) = (columns.div_ceil(group * NR), rows.div_ceil(height));
    let result = &result;
    thread_pool::for_each(groups * heights, |index| {
        let (column, row) = (index / heights * group * NR, index % heights * height);
        let task = Task {
            form,
            bytes,
            others,
            lines,
            rows: row..(row + height).min(rows),
            columns: column..(column + group * NR).min(columns),
        };
        SCRATCH.with_borrow_mut(|Scratch { nr_panels, pairs }| {
            grow(nr_panels, task.columns.len().div_ceil(NR) * VECTORS * lines, Line::ZERO);
            if form.has_tiles_of(T::UNIT) {
                grow(
                    pairs,
                    others.iter().map(|term| packed_units(form, term)).sum(),
                    Line::ZERO,
                );
            }
            // SAFETY: the caller's promise; tasks cover disjoint parts of the result.
            unsafe {
                task.pack(nr_panels);
                task.sweep(nr_panels, pairs, result);
            }
        });
    });
}

/// Units along the summed dimension of a term that is not of bytes.
fn units_of<T: Operand>(term: &Term<'_, T>) -> usize {
    term.right.depth().div_ceil(T::UNIT.values())
}

/// Number of [`units_of`] with those that fill the last tile of pairs on AMX.
fn packed_units<T: Operand>(form: Form, term: &Term<'_, T>) -> usize {
    match form.has_tiles_of(T::UNIT) {
        true => units_of(term).next_multiple_of(AMX_ROWS),
        false => units_of(term),
    }
}

struct Task<'a, T> {
    form: Form,
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
                let (part, others) = place.split_at_mut(packed_units(self.form, term) * vectors);
                place = others;
                let (part, padding) = part.split_at_mut(units_of(term) * vectors);
                padding.fill(Line::ZERO);
                // SAFETY: the caller's promise is the same.
                unsafe { pack_nr_panel::<Avx512>(&term.right, T::UNIT, column, 0..units_of(term), part) };
            }
        }
    }

    /// Streams the rows past the packed NR micro-panels.
    unsafe fn sweep<O: Element>(&self, nr_panels: &[Line], pairs: &mut [Line], result: &Result<O>) {
        let narrow = vectors(self.columns.end, self.columns.start) == 1;
        // SAFETY: the caller's promise; nothing that runs below configures tiles.
        let amx = (self.form == Form::Amx).then(|| unsafe { Tiles::configure() });
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            let height = match amx {
                Some(_) => left.min(AMX_ROWS),
                None => Tiling::AVX512.tile_height(left, if narrow { 1 } else { VECTORS }),
            };
            let rows = row..row + height;
            row = rows.end;
            let amx = amx.as_ref().map(|tiles| (tiles, self.lay_out_pairs(&rows, pairs)));
            let mut nr_panel = nr_panels.as_ptr();
            for column in self.columns.clone().step_by(NR) {
                // SAFETY: the caller's promise; the NR micro-panels were packed.
                unsafe {
                    self.tile(amx, rows.clone(), column, nr_panel, result);
                    nr_panel = nr_panel.add(self.lines * vectors(self.columns.end, column));
                }
            }
        }
    }

    /// Multiplies one height of rows with one packed NR micro-panel.
    unsafe fn tile<O: Element>(
        &self,
        amx: Option<(&Tiles, &[Line])>,
        rows: Range<usize>,
        column: usize,
        right: *const Line,
        result: &Result<O>,
    ) {
        let vectors = vectors(self.columns.end, column);
        let mut sums = Sums([0.0; AMX_ROWS * NR]);
        // SAFETY: the caller's promise; these rows and columns belong to this task alone.
        unsafe {
            let right = self.add_bytes(
                amx.map(|(tiles, _)| tiles),
                (rows.clone(), vectors),
                right,
                sums.0.as_mut_ptr(),
            );
            match amx.filter(|_| self.form.has_tiles_of(T::UNIT)) {
                Some((tiles, left)) => tiles::add_pairs(tiles, vectors, left, right, sums.0.as_mut_ptr()),
                None => self.add_others((rows.clone(), vectors), right, sums.0.as_mut_ptr()),
            }
            let columns = column..(column + NR).min(self.columns.end);
            finish::write(result, &sums.0[..rows.len() * vectors * LANES], rows.start, columns);
        }
    }

    /// Sets `sums` to those of the terms of bytes, and returns where the packed lines of the others begin.
    unsafe fn add_bytes(
        &self,
        amx: Option<&Tiles>,
        (rows, vectors): (Range<usize>, usize),
        mut right: *const Line,
        sums: *mut f32,
    ) -> *const Line {
        let mut begin = Begin::Zero;
        for term in self.bytes {
            let left = Rows {
                codes: term.left.codes[rows.start * term.left.stride..].as_ptr(),
                stride: term.left.stride,
                scales: term.left.scales[rows.start..].as_ptr(),
            };
            // SAFETY: the NR micro-panel was packed for these blocks, and the left operand has the rows: whole tiles of them for AMX.
            unsafe {
                match amx {
                    Some(tiles) => tiles::multiply(tiles, (term.blocks(), vectors), left, right, begin, sums),
                    None => tile::multiply((rows.len(), vectors), term.blocks(), left, right, begin, sums),
                }
                right = right.add(term.blocks() * BLOCK_LINES * vectors);
            }
            begin = Begin::Sums;
        }
        right
    }

    /// Lays out the other terms' left operands of these rows in tiles of sixteen pairs, where AMX takes them. What a tile has beyond the rows
    /// and beyond the summed dimension is zero.
    fn lay_out_pairs<'a>(&self, rows: &Range<usize>, pairs: &'a mut [Line]) -> &'a [Line] {
        if !self.form.has_tiles_of(T::UNIT) {
            return &[];
        }
        let step = AMX_ROWS * T::UNIT.values();
        let mut tiles = pairs.chunks_exact_mut(AMX_ROWS);
        let mut count = 0;
        for term in self.others {
            let depth = term.right.depth();
            for (first, tile) in (0..depth).step_by(step).zip(&mut tiles) {
                tile.fill(Line::ZERO);
                for (line, row) in tile.iter_mut().zip(rows.clone()) {
                    let values = &term.left.values[row * term.left.stride + first..][..step.min(depth - first)];
                    // SAFETY: a line has room for the values of sixteen units.
                    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), line.0.as_mut_ptr().cast(), values.len()) };
                }
                count += 1;
            }
        }
        &pairs[..count * AMX_ROWS]
    }

    /// Adds the other terms, whose packed lines begin at `right`, to `sums`.
    unsafe fn add_others(&self, (rows, vectors): (Range<usize>, usize), right: *const Line, sums: *mut f32) {
        if self.others.is_empty() {
            return;
        }
        let mut row = rows.start;
        while row < rows.end {
            let height = Tiling::AVX512.tile_height(rows.end - row, vectors);
            let (mut pieces, mut right) = ([PanelProduct::NONE; MAX_TERMS], right);
            for (piece, term) in pieces.iter_mut().zip(self.others) {
                *piece = PanelProduct {
                    units: units_of(term),
                    left: MrPanel {
                        start: term.left.values[row * term.left.stride..].as_ptr().cast(),
                        row: term.left.stride / T::UNIT.values(),
                        unit: 1,
                    },
                    right,
                };
                // SAFETY: the NR micro-panel was packed for these units.
                right = unsafe { right.add(units_of(term) * vectors) };
            }
            // SAFETY: as above; the sums have these rows.
            unsafe {
                let sums = sums.add((row - rows.start) * vectors * LANES);
                let pieces = &pieces[..self.others.len()];
                units::multiply(T::UNIT, (height, vectors), pieces, Begin::Sums, sums);
            }
            row += height;
        }
    }
}

/// The sums of one tile.
#[repr(C, align(64))]
struct Sums([f32; AMX_ROWS * NR]);
