//! Blocked products: packed NR micro-panels of the right operand, tiles of the left.
//!
//! result (R, C) = sum over the terms of left_i (R, Q_i) right_i (Q_i, C). A task takes a group of NR micro-panels (48 columns
//! each on AVX-512, 16 on AVX2) and a range of rows: it packs the NR micro-panels into its thread's scratch, which stays in the
//! second-level cache, and streams the rows past them, eight at a time (six on AVX2). Tasks need nothing from each other, and the sum over Q runs in the same
//! order whatever their number, so that the result does not depend on the threads.
//!
//! The left operand is read in place where its rows lie along the summed dimension; where they lie across it (the
//! gradient of a weight), or are wider as units than as elements, MR micro-panels of it are packed too.

use super::instructions::Instructions;
use super::operand::{Old, Result, Right, Side, Term};
use super::pack;
use super::quantized;
use super::tile::{Begin, Line, MrPanel, PanelProduct, TILE, Unit};
use super::unit_operand::Operand;
use super::widened::widen_row;
use crate::ops::element::Element;
use crate::ops::scratch::{grow, resize};
use crate::thread_pool;
use peft_tune_core::plan::products::{KC_UNITS, LANES, MAX_TERMS};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Memory that a thread keeps from one task to the next.
#[derive(Default)]
struct Scratch {
    nr_panels: Vec<Line>,
    mr_panels: Vec<u32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// Computes the sum of `terms`, (rows, columns), into `result`. A straight left operand of pairs has an even
/// depth and stride.
///
/// # Safety
/// The processor has the instructions `I`, and those for `T`; `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<I: Instructions, T: Operand, O: Element>(
    terms: &[Term<'_, T>],
    rows: usize,
    columns: usize,
    result: Result<O>,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let (unit, nr) = (I::unit::<T>(), I::TILING.nr());
    let kc_blocks = kc_blocks(terms, unit);
    let units = kc_blocks
        .iter()
        .map(|kc_block| kc_block.iter().map(|part| part.units.len()).sum());
    let sizes = units.fold([0, 0], |[longest, all], units: usize| [units.max(longest), all + units]);
    let (group, height) = I::TILING.task_shape(rows, columns, sizes, thread_pool::threads_here());
    let (groups, heights) = (columns.div_ceil(group * nr), rows.div_ceil(height));
    let (result, kc_blocks) = (&result, &kc_blocks);
    thread_pool::for_each(groups * heights, |index| {
        let (column, row) = (index / heights * group * nr, index % heights * height);
        let task = Task {
            terms,
            unit,
            kc_blocks,
            rows: row..(row + height).min(rows),
            columns: column..(column + group * nr).min(columns),
            instructions: PhantomData::<I>,
        };
        // SAFETY: the caller's promise; tasks cover disjoint parts of the result.
        SCRATCH.with_borrow_mut(|scratch| unsafe { task.run(result, scratch) });
    });
}

/// Units of one term that are packed in one KC block.
#[derive(Clone, Debug)]
struct KcSlice {
    term: usize,
    units: Range<usize>,
}

/// Splits the summed dimensions of all terms into KC blocks of bounded length.
fn kc_blocks<T: Operand>(terms: &[Term<'_, T>], unit: Unit) -> Vec<Vec<KcSlice>> {
    let (mut kc_blocks, mut kc_block, mut room) = (Vec::new(), Vec::new(), KC_UNITS);
    for (term, operands) in terms.iter().enumerate() {
        let (mut start, end) = (0, operands.right.depth().div_ceil(unit.values()));
        while start < end {
            let units = start..end.min(start + room);
            start = units.end;
            room -= units.len();
            kc_block.push(KcSlice { term, units });
            if room == 0 {
                kc_blocks.push(std::mem::take(&mut kc_block));
                room = KC_UNITS;
            }
        }
    }
    if !kc_block.is_empty() || kc_blocks.is_empty() {
        kc_blocks.push(kc_block);
    }
    kc_blocks
}

struct Task<'a, I, T> {
    terms: &'a [Term<'a, T>],
    unit: Unit,
    kc_blocks: &'a [Vec<KcSlice>],
    rows: Range<usize>,
    columns: Range<usize>,
    instructions: PhantomData<I>,
}

impl<I: Instructions, T: Operand> Task<'_, I, T> {
    /// # Safety
    /// Requirements of [`multiply`].
    unsafe fn run<O: Element>(&self, result: &Result<O>, scratch: &mut Scratch) {
        for (number, kc_block) in self.kc_blocks.iter().enumerate() {
            // SAFETY: the caller's promise is the same.
            unsafe {
                self.pack(kc_block, &mut scratch.nr_panels);
                self.sweep(number, scratch, result);
            }
        }
    }

    /// Packs the NR micro-panels of the task one after the other, the parts of the KC block one after the other in each.
    unsafe fn pack(&self, kc_block: &[KcSlice], nr_panels: &mut Vec<Line>) {
        let units: usize = kc_block.iter().map(|part| part.units.len()).sum();
        let nr = I::TILING.nr();
        let most = self.columns.len().div_ceil(nr) * I::TILING.vectors * units;
        grow(nr_panels, most, Line::ZERO);
        let mut start = 0;
        for column in self.columns.clone().step_by(nr) {
            let vectors = I::TILING.panel_vectors(self.columns.end - column);
            for part in kc_block {
                let lines = part.units.len() * vectors;
                let place = &mut nr_panels[start..start + lines];
                // SAFETY: the caller's promise is the same.
                unsafe {
                    pack_nr_panel::<I>(
                        &self.terms[part.term].right,
                        self.unit,
                        column,
                        part.units.clone(),
                        place,
                    )
                };
                start += lines;
            }
        }
    }

    /// Streams the rows past the packed NR micro-panels.
    unsafe fn sweep<O: Element>(&self, number: usize, scratch: &mut Scratch, result: &Result<O>) {
        if self.kc_blocks.len() > 1 {
            let columns = self.columns.len().next_multiple_of(I::TILING.nr());
            resize(&mut scratch.sums, self.rows.len() * columns, 0.0);
        }
        // Tiles of one vector may be higher; all NR micro-panels of the task share the MR micro-panels, so the first one decides.
        let vectors = I::TILING.panel_vectors(self.columns.len());
        let (mut row, mut saved) = (self.rows.start, 0);
        while row < self.rows.end {
            let rows = row..row + I::TILING.tile_height(self.rows.end - row, vectors);
            row = rows.end;
            let mr_panels = self.mr_panels(number, &rows, &mut scratch.mr_panels);
            self.fetch(number, row);
            let memory = (&scratch.nr_panels[..], &mut scratch.sums[..]);
            // SAFETY: the caller's promise; the NR micro-panels are packed for this KC block.
            unsafe { self.tile_row(number, &mr_panels, rows, memory, &mut saved, result) };
        }
    }

    /// Multiplies one height of tiles with all NR micro-panels.
    #[expect(
        clippy::too_many_arguments,
        reason = "the pieces of one kc_block; a struct of them would live for one call"
    )]
    unsafe fn tile_row<O: Element>(
        &self,
        number: usize,
        mr_panels: &[MrPanel; MAX_TERMS],
        rows: Range<usize>,
        (nr_panels, partial): (&[Line], &mut [f32]),
        saved: &mut usize,
        result: &Result<O>,
    ) {
        let (kc_block, last) = (&self.kc_blocks[number], number + 1 == self.kc_blocks.len());
        let (mut tile, mut nr_panel) = (Sums([0.0; TILE]), nr_panels.as_ptr());
        let begin = if number > 0 { Begin::Sums } else { Begin::Zero };
        for column in self.columns.clone().step_by(I::TILING.nr()) {
            let vectors = I::TILING.panel_vectors(self.columns.end - column);
            let elements = rows.len() * vectors * LANES;
            let mut pieces = [PanelProduct::NONE; MAX_TERMS];
            for ((piece, part), mr_panel) in pieces.iter_mut().zip(kc_block).zip(mr_panels) {
                let units = part.units.len();
                *piece = PanelProduct {
                    units,
                    left: *mr_panel,
                    right: nr_panel,
                };
                // SAFETY: the NR micro-panel was packed for these units.
                nr_panel = unsafe { nr_panel.add(units * vectors) };
            }
            let sums = match self.kc_blocks.len() {
                1 => &mut tile.0[..elements],
                _ => &mut partial[*saved..*saved + elements],
            };
            let size = (rows.len(), vectors);
            let columns = column..(column + I::TILING.nr()).min(self.columns.end);
            if last {
                fetch_result(result, &rows, &columns);
            }
            // SAFETY: the NR micro-panels were packed for these units, the MR micro-panels have them.
            unsafe { I::multiply(self.unit, size, &pieces[..kc_block.len()], begin, sums.as_mut_ptr()) };
            if last {
                // SAFETY: these rows and columns belong to this task alone.
                unsafe { I::write(result, sums, rows.start, columns) };
            }
            *saved += elements;
        }
    }

    /// Asks for the left operand's rows from `row` on, which the next tiles read.
    fn fetch(&self, number: usize, row: usize) {
        for part in &self.kc_blocks[number] {
            let left = self.terms[part.term].left;
            if left.side == Side::Transposed {
                continue;
            }
            for row in row..(row + I::TILING.rows).min(self.rows.end) {
                let start = row * left.stride + part.units.start * self.unit.values();
                let line = size_of::<Line>() / size_of::<T>();
                for value in (start..start + part.units.len() * self.unit.values()).step_by(line) {
                    pack::fetch(left.values.as_ptr().wrapping_add(value));
                }
            }
        }
    }

    /// Places of the units of each part's left operand for the rows of a tile.
    fn mr_panels(&self, number: usize, rows: &Range<usize>, packed: &mut Vec<u32>) -> [MrPanel; MAX_TERMS] {
        let (kc_block, values) = (&self.kc_blocks[number], self.unit.values());
        let is_whole = values * size_of::<T>() == size_of::<u32>();
        let most: usize = kc_block.iter().map(|part| part.units.len() * rows.len()).sum();
        grow(packed, most, 0);
        let mut packed = packed.as_mut_slice();
        let mut mr_panels = [MrPanel::NONE; MAX_TERMS];
        for (mr_panel, part) in mr_panels.iter_mut().zip(kc_block) {
            let (left, units) = (self.terms[part.term].left, part.units.len());
            let mut place = || packed.split_off_mut(..units * rows.len()).unwrap_or_default();
            *mr_panel = match left.side {
                Side::Straight if is_whole => {
                    let first = &left.values[rows.start * left.stride + part.units.start * values..];
                    MrPanel {
                        start: first.as_ptr().cast(),
                        row: left.stride / values,
                        unit: 1,
                    }
                }
                Side::Straight => {
                    let place = place();
                    for (row, place) in rows.clone().zip(place.chunks_exact_mut(units)) {
                        let values = &left.values[row * left.stride + part.units.start..][..units];
                        // SAFETY: the places are as many F32 values.
                        widen_row(values, unsafe {
                            std::slice::from_raw_parts_mut(place.as_mut_ptr().cast(), units)
                        });
                    }
                    MrPanel {
                        start: place.as_ptr(),
                        row: units,
                        unit: 1,
                    }
                }
                // Units of one value can be read where they lie, and are where they are read once.
                Side::Transposed if is_whole && values == 1 && self.columns.len() <= I::TILING.nr() => {
                    let first = &left.values[part.units.start * left.stride + rows.start..];
                    MrPanel {
                        start: first.as_ptr().cast(),
                        row: 1,
                        unit: left.stride,
                    }
                }
                Side::Transposed => {
                    let place = place();
                    // SAFETY: whoever runs a task has the instructions.
                    unsafe { I::mr_panel(&left, self.unit, rows, part.units.clone(), place) };
                    MrPanel {
                        start: place.as_ptr(),
                        row: 1,
                        unit: rows.len(),
                    }
                }
            };
        }
        mr_panels
    }
}

/// Asks for what a tile is written to and added to, while its sums are computed.
fn fetch_result<O: Element>(result: &Result<O>, rows: &Range<usize>, columns: &Range<usize>) {
    let other = match result.old {
        Old::Other(other) => Some(other),
        Old::Nothing | Old::Itself(_) => None,
    };
    for row in rows.clone() {
        for column in columns.clone().step_by(size_of::<Line>() / size_of::<O>()) {
            let place = row * result.stride + column;
            pack::fetch(result.start.wrapping_add(place));
            if let Some(other) = other {
                pack::fetch(other.wrapping_add(place));
            }
        }
    }
}

/// # Safety
/// Requirements of [`pack::NR micro-panel`].
pub(super) unsafe fn pack_nr_panel<I: Instructions>(
    right: &Right<'_>,
    unit: Unit,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => I::nr_panel(source, unit, column, units, nr_panel),
            Right::Bf16(source) => I::nr_panel(source, unit, column, units, nr_panel),
            Right::F16(source) => I::nr_panel(source, unit, column, units, nr_panel),
            Right::QuantizedMatrix(source) => quantized::nr_panel::<I>(source, unit, column, units, nr_panel),
        }
    }
}

/// The sums of one tile.
#[repr(C, align(64))]
struct Sums([f32; TILE]);
