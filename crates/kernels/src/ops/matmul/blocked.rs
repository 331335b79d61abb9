//! Blocked products on AVX-512: packed NR micro-panels of the right operand, tiles of the left.
//!
//! result (R, C) = sum over the terms of left_i (R, Q_i) right_i (Q_i, C). A task takes a group of NR micro-panels (48 columns
//! each) and a range of rows: it packs the NR micro-panels into its thread's scratch, which stays in the second-level cache, and
//! streams the rows past them, eight at a time. Tasks need nothing from each other, and the sum over Q runs in the same
//! order whatever their number, so that the result does not depend on the threads.
//!
//! The left operand is read in place where its rows lie along the summed dimension; where they lie across it (the
//! gradient of a weight), MR micro-panels of it are packed too.

use super::finish;
use super::operand::{Left, Result, Right, Side, Term};
use super::pack;
use super::quantized;
use super::tile::{self, Begin, Line, MrPanel, PanelProduct, TILE, Unit};
use crate::ops::element::Element;
use crate::ops::room::{grow, resize};
use crate::thread_pool;
use half::bf16;
use peft_tune_core::plan::products::{KC_UNITS, LANES, MAX_TERMS, NR, TILE_ROWS, VECTORS, task_shape, tile_height};
use std::cell::RefCell;
use std::ops::Range;

/// Values that units are made of.
pub(super) trait Operand: Element {
    const UNIT: Unit;
}

impl Operand for f32 {
    const UNIT: Unit = Unit::Single;
}

impl Operand for bf16 {
    const UNIT: Unit = Unit::Pair;
}

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
/// The processor has AVX-512F, BW, DQ and VL, and AVX-512 BF16 for operands of BF16; `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<T: Operand, O: Element>(
    terms: &[Term<'_, T>],
    rows: usize,
    columns: usize,
    result: Result<O>,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let kc_blocks = kc_blocks::<T>(terms);
    let units = kc_blocks
        .iter()
        .map(|kc_block| kc_block.iter().map(|part| part.units.len()).sum());
    let sizes = units.fold([0, 0], |[longest, all], units: usize| [units.max(longest), all + units]);
    let (group, height) = task_shape(rows, columns, sizes, thread_pool::threads_here());
    let (groups, heights) = (columns.div_ceil(group * NR), rows.div_ceil(height));
    let (result, kc_blocks) = (&result, &kc_blocks);
    thread_pool::for_each(groups * heights, |index| {
        let (column, row) = (index / heights * group * NR, index % heights * height);
        let task = Task {
            terms,
            kc_blocks,
            rows: row..(row + height).min(rows),
            columns: column..(column + group * NR).min(columns),
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
fn kc_blocks<T: Operand>(terms: &[Term<'_, T>]) -> Vec<Vec<KcSlice>> {
    let (mut kc_blocks, mut kc_block, mut room) = (Vec::new(), Vec::new(), KC_UNITS);
    for (term, operands) in terms.iter().enumerate() {
        let (mut start, end) = (0, operands.right.depth().div_ceil(T::UNIT.values()));
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

struct Task<'a, T> {
    terms: &'a [Term<'a, T>],
    kc_blocks: &'a [Vec<KcSlice>],
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<T: Operand> Task<'_, T> {
    /// # Safety
    /// As [`multiply`].
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
        let most = self.columns.len().div_ceil(NR) * VECTORS * units;
        grow(nr_panels, most, Line::ZERO);
        let mut start = 0;
        for column in self.columns.clone().step_by(NR) {
            let vectors = pack::vectors(self.columns.end, column);
            for part in kc_block {
                let lines = part.units.len() * vectors;
                let place = &mut nr_panels[start..start + lines];
                // SAFETY: the caller's promise is the same.
                unsafe { pack_nr_panel(&self.terms[part.term].right, T::UNIT, column, part.units.clone(), place) };
                start += lines;
            }
        }
    }

    /// Streams the rows past the packed NR micro-panels.
    unsafe fn sweep<O: Element>(&self, number: usize, scratch: &mut Scratch, result: &Result<O>) {
        if self.kc_blocks.len() > 1 {
            let columns = self.columns.len().next_multiple_of(NR);
            resize(&mut scratch.sums, self.rows.len() * columns, 0.0);
        }
        // Tiles of one vector are twice as high; all NR micro-panels of the task share the MR micro-panels, so the first one decides.
        let narrow = pack::vectors(self.columns.end, self.columns.start) == 1;
        let (mut row, mut saved) = (self.rows.start, 0);
        while row < self.rows.end {
            let rows = row..row + tile_height(self.rows.end - row, if narrow { 1 } else { VECTORS });
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
        for column in self.columns.clone().step_by(NR) {
            let vectors = pack::vectors(self.columns.end, column);
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
            // SAFETY: the NR micro-panels were packed for these units, the MR micro-panels have them.
            unsafe { tile::multiply(T::UNIT, size, &pieces[..kc_block.len()], begin, sums.as_mut_ptr()) };
            if last {
                let columns = column..(column + NR).min(self.columns.end);
                // SAFETY: these rows and columns belong to this task alone.
                unsafe { finish::write(result, sums, rows.start, columns) };
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
            for row in row..(row + TILE_ROWS).min(self.rows.end) {
                let start = row * left.stride + part.units.start * T::UNIT.values();
                let line = size_of::<Line>() / size_of::<T>();
                for value in (start..start + part.units.len() * T::UNIT.values()).step_by(line) {
                    pack::fetch(left.values.as_ptr().wrapping_add(value));
                }
            }
        }
    }

    /// Where the units of each part's left operand lie for the rows of a tile.
    fn mr_panels(&self, number: usize, rows: &Range<usize>, packed: &mut Vec<u32>) -> [MrPanel; MAX_TERMS] {
        let (kc_block, values) = (&self.kc_blocks[number], T::UNIT.values());
        let most: usize = kc_block.iter().map(|part| part.units.len() * rows.len()).sum();
        grow(packed, most, 0);
        let mut packed = packed.as_mut_slice();
        let mut mr_panels = [MrPanel::NONE; MAX_TERMS];
        for (mr_panel, part) in mr_panels.iter_mut().zip(kc_block) {
            let left = self.terms[part.term].left;
            *mr_panel = match left.side {
                Side::Straight => {
                    let first = &left.values[rows.start * left.stride + part.units.start * values..];
                    MrPanel {
                        start: first.as_ptr().cast(),
                        row: left.stride / values,
                        unit: 1,
                    }
                }
                // Units of one value can be read where they lie, and are where they are read once.
                Side::Transposed if values == 1 && self.columns.len() <= NR => {
                    let first = &left.values[part.units.start * left.stride + rows.start..];
                    MrPanel {
                        start: first.as_ptr().cast(),
                        row: 1,
                        unit: left.stride,
                    }
                }
                Side::Transposed => {
                    let (place, rest) = std::mem::take(&mut packed).split_at_mut(part.units.len() * rows.len());
                    packed = rest;
                    // SAFETY: whoever runs a task has AVX-512.
                    unsafe { pack_mr_panel(&left, rows, part.units.clone(), place) };
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

/// # Safety
/// As [`pack::NR micro-panel`].
pub(super) unsafe fn pack_nr_panel(
    right: &Right<'_>,
    unit: Unit,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => pack::nr_panel(source, unit, column, units, nr_panel),
            Right::Bf16(source) => pack::nr_panel(source, unit, column, units, nr_panel),
            Right::F16(source) => pack::nr_panel(source, unit, column, units, nr_panel),
            Right::QuantizedMatrix(source) => quantized::nr_panel(source, unit, column, units, nr_panel),
        }
    }
}

/// The sums of one tile.
#[repr(C, align(64))]
struct Sums([f32; TILE]);

/// Packs rows of a transposed left operand: for each unit, that unit of each row.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack_mr_panel<T: Operand>(
    left: &Left<'_, T>,
    rows: &Range<usize>,
    units: Range<usize>,
    mr_panel: &mut [u32],
) {
    match rows.len() {
        16 => pack_rows::<T, 16>(left, rows.start, units, mr_panel),
        8 => pack_rows::<T, 8>(left, rows.start, units, mr_panel),
        4 => pack_rows::<T, 4>(left, rows.start, units, mr_panel),
        2 => pack_rows::<T, 2>(left, rows.start, units, mr_panel),
        _ => pack_rows::<T, 1>(left, rows.start, units, mr_panel),
    }
}

#[inline(always)]
fn pack_rows<T: Operand, const M: usize>(left: &Left<'_, T>, row: usize, units: Range<usize>, mr_panel: &mut [u32]) {
    // Beyond the end of the summed dimension, where a pair may reach, there are zeros.
    let zero = [T::narrow(0.0); M];
    let line = |index: usize| {
        left.values
            .get(index * left.stride + row..)
            .and_then(|line| line.first_chunk::<M>())
    };
    for (unit, place) in units.zip(mr_panel.as_chunks_mut::<M>().0) {
        let first = line(unit * T::UNIT.values()).unwrap_or(&zero);
        let second = line((unit + 1) * T::UNIT.values() - 1).unwrap_or(&zero);
        for (unit, (low, high)) in place.iter_mut().zip(first.iter().zip(second)) {
            *unit = match T::UNIT {
                Unit::Single => low.widen().to_bits(),
                Unit::Pair => low.widen().to_bits() >> 16 | high.widen().to_bits(),
            };
        }
    }
}
