//! Blocked products on AVX-512: packed panels of the right operand, tiles of the left.
//!
//! result (R, C) = sum over the terms of left_i (R, Q_i) right_i (Q_i, C). A task takes a group of panels (48 columns
//! each) and a range of rows: it packs the panels into its thread's scratch, which stays in the second-level cache, and
//! streams the rows past them, eight at a time. Tasks need nothing from each other, and the sum over Q runs in the same
//! order whatever their number, so that the result does not depend on the threads.
//!
//! The left operand is read in place where its rows lie along the summed dimension; where they lie across it (the
//! gradient of a weight), strips of it are packed too.

use super::coded;
use super::finish;
use super::operand::{Left, Result, Right, Side, Term};
use super::pack;
use super::tile::{self, Begin, Line, Piece, Strip, TILE, Unit};
use crate::plan::products::{LANES, MAX_TERMS, PANEL, PASS_UNITS, TILE_ROWS, VECTORS, task_shape, tile_height};
use crate::train::ops::element::Element;
use crate::train::ops::room::{grow, resize};
use crate::train::ops::team;
use half::bf16;
use std::cell::RefCell;
use std::ops::Range;

/// Values that units are made of.
pub trait Operand: Element {
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
    panels: Vec<Line>,
    strips: Vec<u32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lets go of what this thread keeps.
pub fn forget() {
    SCRATCH.take();
}

/// Computes the sum of `terms`, (rows, columns), into `result`. A straight left operand of pairs has an even
/// depth and stride.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL, and AVX-512 BF16 for operands of BF16; `result` is valid for (rows, columns).
pub unsafe fn multiply<T: Operand, O: Element>(terms: &[Term<'_, T>], rows: usize, columns: usize, result: Result<O>) {
    if rows == 0 || columns == 0 {
        return;
    }
    let passes = passes::<T>(terms);
    let units = passes.iter().map(|pass| pass.iter().map(|part| part.units.len()).sum());
    let sizes = units.fold([0, 0], |[longest, all], units: usize| [units.max(longest), all + units]);
    let (group, height) = task_shape(rows, columns, sizes, team::threads());
    let (groups, heights) = (columns.div_ceil(group * PANEL), rows.div_ceil(height));
    let (result, passes) = (&result, &passes);
    team::for_each(groups * heights, |index| {
        let (column, row) = (index / heights * group * PANEL, index % heights * height);
        let task = Task {
            terms,
            passes,
            rows: row..(row + height).min(rows),
            columns: column..(column + group * PANEL).min(columns),
        };
        // SAFETY: the caller's promise; tasks cover disjoint parts of the result.
        SCRATCH.with_borrow_mut(|scratch| unsafe { task.run(result, scratch) });
    });
}

/// Units of one term that are packed in one pass.
#[derive(Clone, Debug)]
struct Part {
    term: usize,
    units: Range<usize>,
}

/// Splits the summed dimensions of all terms into passes of bounded length.
fn passes<T: Operand>(terms: &[Term<'_, T>]) -> Vec<Vec<Part>> {
    let (mut passes, mut pass, mut room) = (Vec::new(), Vec::new(), PASS_UNITS);
    for (term, operands) in terms.iter().enumerate() {
        let (mut start, end) = (0, operands.right.depth().div_ceil(T::UNIT.values()));
        while start < end {
            let units = start..end.min(start + room);
            start = units.end;
            room -= units.len();
            pass.push(Part { term, units });
            if room == 0 {
                passes.push(std::mem::take(&mut pass));
                room = PASS_UNITS;
            }
        }
    }
    if !pass.is_empty() || passes.is_empty() {
        passes.push(pass);
    }
    passes
}

struct Task<'a, T> {
    terms: &'a [Term<'a, T>],
    passes: &'a [Vec<Part>],
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<T: Operand> Task<'_, T> {
    /// # Safety
    /// As [`multiply`].
    unsafe fn run<O: Element>(&self, result: &Result<O>, scratch: &mut Scratch) {
        for (number, pass) in self.passes.iter().enumerate() {
            // SAFETY: the caller's promise is the same.
            unsafe {
                self.pack(pass, &mut scratch.panels);
                self.sweep(number, scratch, result);
            }
        }
    }

    /// Packs the panels of the task one after the other, the parts of the pass one after the other in each.
    unsafe fn pack(&self, pass: &[Part], panels: &mut Vec<Line>) {
        let units: usize = pass.iter().map(|part| part.units.len()).sum();
        let most = self.columns.len().div_ceil(PANEL) * VECTORS * units;
        grow(panels, most, Line::ZERO);
        let mut start = 0;
        for column in self.columns.clone().step_by(PANEL) {
            let vectors = pack::vectors(self.columns.end, column);
            for part in pass {
                let lines = part.units.len() * vectors;
                let place = &mut panels[start..start + lines];
                // SAFETY: the caller's promise is the same.
                unsafe { pack_panel(&self.terms[part.term].right, T::UNIT, column, part.units.clone(), place) };
                start += lines;
            }
        }
    }

    /// Streams the rows past the packed panels.
    unsafe fn sweep<O: Element>(&self, number: usize, scratch: &mut Scratch, result: &Result<O>) {
        if self.passes.len() > 1 {
            let columns = self.columns.len().next_multiple_of(PANEL);
            resize(&mut scratch.sums, self.rows.len() * columns, 0.0);
        }
        // Tiles of one vector are twice as high; all panels of the task share the strips, so the first one decides.
        let narrow = pack::vectors(self.columns.end, self.columns.start) == 1;
        let (mut row, mut saved) = (self.rows.start, 0);
        while row < self.rows.end {
            let rows = row..row + tile_height(self.rows.end - row, if narrow { 1 } else { VECTORS });
            row = rows.end;
            let strips = self.strips(number, &rows, &mut scratch.strips);
            self.fetch(number, row);
            let memory = (&scratch.panels[..], &mut scratch.sums[..]);
            // SAFETY: the caller's promise; the panels are packed for this pass.
            unsafe { self.tile_row(number, &strips, rows, memory, &mut saved, result) };
        }
    }

    /// Multiplies one height of tiles with all panels.
    #[expect(
        clippy::too_many_arguments,
        reason = "the pieces of one pass; a struct of them would live for one call"
    )]
    unsafe fn tile_row<O: Element>(
        &self,
        number: usize,
        strips: &[Strip; MAX_TERMS],
        rows: Range<usize>,
        (panels, partial): (&[Line], &mut [f32]),
        saved: &mut usize,
        result: &Result<O>,
    ) {
        let (pass, last) = (&self.passes[number], number + 1 == self.passes.len());
        let (mut tile, mut panel) = (Sums([0.0; TILE]), panels.as_ptr());
        let begin = if number > 0 { Begin::Sums } else { Begin::Zero };
        for column in self.columns.clone().step_by(PANEL) {
            let vectors = pack::vectors(self.columns.end, column);
            let elements = rows.len() * vectors * LANES;
            let mut pieces = [Piece::NONE; MAX_TERMS];
            for ((piece, part), strip) in pieces.iter_mut().zip(pass).zip(strips) {
                let units = part.units.len();
                *piece = Piece {
                    units,
                    left: *strip,
                    right: panel,
                };
                // SAFETY: the panel was packed for these units.
                panel = unsafe { panel.add(units * vectors) };
            }
            let sums = match self.passes.len() {
                1 => &mut tile.0[..elements],
                _ => &mut partial[*saved..*saved + elements],
            };
            let size = (rows.len(), vectors);
            // SAFETY: the panels were packed for these units, the strips have them.
            unsafe { tile::multiply(T::UNIT, size, &pieces[..pass.len()], begin, sums.as_mut_ptr()) };
            if last {
                let columns = column..(column + PANEL).min(self.columns.end);
                // SAFETY: these rows and columns belong to this task alone.
                unsafe { finish::write(result, sums, rows.start, columns) };
            }
            *saved += elements;
        }
    }

    /// Asks for the left operand's rows from `row` on, which the next tiles read.
    fn fetch(&self, number: usize, row: usize) {
        for part in &self.passes[number] {
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
    fn strips(&self, number: usize, rows: &Range<usize>, packed: &mut Vec<u32>) -> [Strip; MAX_TERMS] {
        let (pass, values) = (&self.passes[number], T::UNIT.values());
        let most: usize = pass.iter().map(|part| part.units.len() * rows.len()).sum();
        grow(packed, most, 0);
        let mut packed = packed.as_mut_slice();
        let mut strips = [Strip::NONE; MAX_TERMS];
        for (strip, part) in strips.iter_mut().zip(pass) {
            let left = self.terms[part.term].left;
            *strip = match left.side {
                Side::Straight => {
                    let first = &left.values[rows.start * left.stride + part.units.start * values..];
                    Strip {
                        start: first.as_ptr().cast(),
                        row: left.stride / values,
                        unit: 1,
                    }
                }
                // Units of one value can be read where they lie, and are where they are read once.
                Side::Transposed if values == 1 && self.columns.len() <= PANEL => {
                    let first = &left.values[part.units.start * left.stride + rows.start..];
                    Strip {
                        start: first.as_ptr().cast(),
                        row: 1,
                        unit: left.stride,
                    }
                }
                Side::Transposed => {
                    let (place, rest) = std::mem::take(&mut packed).split_at_mut(part.units.len() * rows.len());
                    packed = rest;
                    // SAFETY: whoever runs a task has AVX-512.
                    unsafe { pack_strip(&left, rows, part.units.clone(), place) };
                    Strip {
                        start: place.as_ptr(),
                        row: 1,
                        unit: rows.len(),
                    }
                }
            };
        }
        strips
    }
}

/// # Safety
/// As [`pack::panel`].
unsafe fn pack_panel(right: &Right<'_>, unit: Unit, column: usize, units: Range<usize>, panel: &mut [Line]) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match right {
            Right::F32(source) => pack::panel(source, unit, column, units, panel),
            Right::Bf16(source) => pack::panel(source, unit, column, units, panel),
            Right::F16(source) => pack::panel(source, unit, column, units, panel),
            Right::Coded(source) => coded::panel(source, unit, column, units, panel),
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
unsafe fn pack_strip<T: Operand>(left: &Left<'_, T>, rows: &Range<usize>, units: Range<usize>, strip: &mut [u32]) {
    match rows.len() {
        16 => pack_rows::<T, 16>(left, rows.start, units, strip),
        8 => pack_rows::<T, 8>(left, rows.start, units, strip),
        4 => pack_rows::<T, 4>(left, rows.start, units, strip),
        2 => pack_rows::<T, 2>(left, rows.start, units, strip),
        _ => pack_rows::<T, 1>(left, rows.start, units, strip),
    }
}

#[inline(always)]
fn pack_rows<T: Operand, const M: usize>(left: &Left<'_, T>, row: usize, units: Range<usize>, strip: &mut [u32]) {
    // Beyond the end of the summed dimension, where a pair may reach, there are zeros.
    let zero = [T::narrow(0.0); M];
    let line = |index: usize| {
        left.values
            .get(index * left.stride + row..)
            .and_then(|line| line.first_chunk::<M>())
    };
    for (unit, place) in units.zip(strip.as_chunks_mut::<M>().0) {
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
