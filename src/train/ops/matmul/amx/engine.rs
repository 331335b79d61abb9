//! Passes, tasks and the memory that they take.

use super::form::{Form, Operand};
use super::kernel::{Piece, Strip};
use super::layout::{LEFT_BYTES, PANEL, STRIP_ROWS, TILE_BYTES, VECTORS};
use super::right::{self, Panels, TASK_PANELS};
use super::short;
use super::stream::{Pass, Stream, Tile};
use super::unit::{ROW_BYTES, TILE_ROWS, Tiles};
use crate::plan::products::{LANES, MAX_TERMS, amx as products};
use crate::train::ops::element::Element;
use crate::train::ops::matmul::operand::{Result, Side, Term};
use crate::train::ops::matmul::tile::Line;
use crate::train::ops::room::grow;
use crate::train::ops::team;
use std::cell::RefCell;
use std::ops::Range;

/// F32 sums of a tile of the result.
const TILE_SUMS: usize = STRIP_ROWS * PANEL;

/// Memory that a calling thread keeps from one product to the next, for all threads.
#[derive(Default)]
struct Memory {
    left: Vec<Line>,
    /// Tiles of sums, where there are several passes.
    sums: Vec<Line>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
    /// Packed panels of a task.
    static RIGHT: RefCell<Vec<Line>> = RefCell::default();
}

/// Lets go of what this thread keeps.
pub fn forget() {
    MEMORY.take();
    RIGHT.take();
}

/// Steps of one term within a pass.
#[derive(Clone, Debug)]
struct Part {
    term: usize,
    steps: Range<usize>,
}

/// Computes the sum of `terms`, (rows, columns), into `result`.
///
/// # Safety
/// The unit is available; `result` is valid for (rows, columns).
pub unsafe fn multiply<T: Operand, O: Element>(terms: &[Term<'_, T>], rows: usize, columns: usize, result: Result<O>) {
    // Where all terms are short, none is.
    let has_short = T::FORM == Form::Digits && !terms.iter().all(short::is_short);
    let (short, terms): (Vec<_>, Vec<_>) = terms.iter().partition(|term| has_short && short::is_short(term));
    let passes = passes(&terms);
    let height = rows.min(products::ROW_BLOCK).next_multiple_of(STRIP_ROWS);
    let width = match passes.len() {
        1 => columns,
        _ => products::panels_with_sums(height / STRIP_ROWS) * PANEL,
    };
    let mut memory = MEMORY.take();
    for row in (0..rows).step_by(products::ROW_BLOCK) {
        for column in (0..columns).step_by(width.max(1)) {
            let block = Block {
                terms: &terms,
                short: &short,
                passes: &passes,
                rows: row..(row + products::ROW_BLOCK).min(rows),
                columns: column..(column + width).min(columns),
            };
            // SAFETY: the caller's promise is the same.
            unsafe { block.run(&result, &mut memory) };
        }
    }
    MEMORY.set(memory);
}

/// Splits the summed dimensions of all terms into passes of bounded length. A term that fits into a pass is not split.
fn passes<T: Operand>(terms: &[&Term<'_, T>]) -> Vec<Vec<Part>> {
    let most = products::PASS / T::FORM.step();
    let (mut passes, mut room) = (vec![Vec::new()], most);
    for (term, operands) in terms.iter().enumerate() {
        let (mut start, end) = (0, operands.right.depth().div_ceil(T::FORM.step()));
        while start < end {
            let left = end - start;
            if room == 0 || (left > room && left <= most) {
                passes.push(Vec::new());
                room = most;
            }
            let steps = start..start + left.min(room);
            (start, room) = (steps.end, room - steps.len());
            if let Some(pass) = passes.last_mut() {
                pass.push(Part { term, steps });
            }
        }
    }
    passes
}

/// A part of the result whose left operand is laid out at once.
struct Block<'a, T> {
    terms: &'a [&'a Term<'a, T>],
    /// More of them, which are added by multiply-adds, in no pass.
    short: &'a [&'a Term<'a, T>],
    passes: &'a [Vec<Part>],
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Memory of a block that several threads write to, each its own part.
#[derive(Clone, Copy)]
struct Lines(*mut Line);

// SAFETY: every part is reached from one thread.
unsafe impl Sync for Lines {}

impl Lines {
    /// # Safety
    /// The part lies within the memory, and nothing else reaches it while it is borrowed.
    unsafe fn part<'a>(self, start: usize, lines: usize) -> &'a mut [Line] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), lines) }
    }
}

impl<T: Operand> Block<'_, T> {
    fn strips(&self) -> usize {
        self.rows.len().div_ceil(STRIP_ROWS)
    }

    fn panels(&self) -> usize {
        self.columns.len().div_ceil(PANEL)
    }

    /// # Safety
    /// As [`multiply`].
    unsafe fn run<O: Element>(&self, result: &Result<O>, memory: &mut Memory) {
        let tiles = if self.passes.len() > 1 {
            self.strips() * self.panels()
        } else {
            0
        };
        grow(&mut memory.sums, tiles * TILE_SUMS / LANES, Line::ZERO);
        let sums = Lines(memory.sums.as_mut_ptr());
        for (number, pass) in self.passes.iter().enumerate() {
            let (places, strips) = self.place(pass, &mut memory.left);
            // SAFETY: whoever has the unit has the rest.
            team::for_each(strips, |strip| unsafe { self.lay_out(pass, &places, strip) });
            let stride = self.stride(number);
            let bytes = stride * size_of::<Line>();
            let (group, height) = products::task_shape(self.strips(), self.panels(), bytes, team::threads());
            let (groups, heights) = (self.panels().div_ceil(group), self.strips().div_ceil(height));
            let task = Task {
                block: self,
                number,
                places: &places,
                stride,
                sums,
            };
            team::for_each(groups * heights, |index| {
                let (panel, strip) = (index / heights * group, index % heights * height);
                let strips = strip..(strip + height).min(self.strips());
                // SAFETY: the caller's promise; tasks cover disjoint parts of the result.
                unsafe { task.run(strips, panel..(panel + group).min(self.panels()), result) };
            });
        }
    }

    /// Where the strips of each part of the pass lie, as they are or in `memory`, and how many there are to lay out.
    fn place(&self, pass: &[Part], memory: &mut Vec<Line>) -> (Places, usize) {
        let (strips, mut lines) = (self.strips(), 0);
        let mut places = Places::default();
        for (place, part) in places.0.iter_mut().zip(pass) {
            let strip_lines = T::FORM.strip_lines(part.steps.len());
            *place = self.in_place(part).unwrap_or(Place {
                strip: strip_lines * size_of::<Line>(),
                row: ROW_BYTES,
                step: LEFT_BYTES,
                lower: TILE_BYTES,
                laid_out: Some(lines),
                start: std::ptr::null(),
            });
            lines += place.laid_out.map_or(0, |_| strips * strip_lines);
        }
        grow(memory, lines, Line::ZERO);
        for place in &mut places.0 {
            if let Some(first) = place.laid_out {
                // SAFETY: the memory has room for all strips.
                place.start = unsafe { memory.as_ptr().add(first).cast() };
            }
        }
        (places, if lines > 0 { strips } else { 0 })
    }

    /// Lays out one strip of the parts that are not taken where they lie.
    unsafe fn lay_out(&self, pass: &[Part], places: &Places, strip: usize) {
        let row = self.rows.start + strip * STRIP_ROWS;
        let rows = row..(row + STRIP_ROWS).min(self.rows.end);
        for (place, part) in places.0.iter().zip(pass).filter(|(place, _)| place.laid_out.is_some()) {
            let (term, lines) = (&self.terms[part.term], place.strip / size_of::<Line>());
            // SAFETY: the strip lies within the memory of the left operand, and belongs to this task alone.
            unsafe {
                let strip = Lines(place.start.cast_mut().cast()).part(strip * lines, lines);
                T::FORM.pack_left(&term.left, term.right.depth(), rows.clone(), part.steps.clone(), strip);
            }
        }
    }

    /// Packs some panels.
    unsafe fn pack_panels(&self, pass: &[Part], mut panels: Panels<'_>, is_last: bool) {
        for part in pass {
            // SAFETY: the caller's promise is the same.
            unsafe { right::pack(T::FORM, &self.terms[part.term].right, part.steps.clone(), &mut panels) };
            panels.before += T::FORM.panel_rows(part.steps.len());
        }
        for term in self.short.iter().filter(|_| is_last) {
            for (panel, column) in panels.columns.clone().step_by(PANEL).enumerate() {
                let columns = PANEL.min(panels.columns.end - column);
                let start = panel * panels.stride + panels.before * columns.div_ceil(LANES);
                // SAFETY: the caller's promise is the same.
                unsafe { short::pack(&term.right, column, columns, &mut panels.lines[start..]) };
            }
            panels.before += term.right.depth();
        }
    }

    /// Lines from one packed panel of a pass to the next.
    fn stride(&self, number: usize) -> usize {
        let short = if number + 1 == self.passes.len() {
            self.short
        } else {
            &[]
        };
        panel_lines::<T>(&self.passes[number]) + short_lines(short)
    }

    /// The part where it lies: BF16 rows of whole steps that begin at whole cache lines, in whole strips.
    fn in_place(&self, part: &Part) -> Option<Place> {
        let Term { left, right } = &self.terms[part.term];
        let start = left
            .values
            .as_ptr()
            .wrapping_add(self.rows.start * left.stride + part.steps.start * T::FORM.step());
        let row = left.stride * size_of::<T>();
        let fits = T::FORM == Form::Pairs
            && left.side == Side::Straight
            && self.rows.len().is_multiple_of(STRIP_ROWS)
            && right.depth().is_multiple_of(T::FORM.step())
            && row.is_multiple_of(ROW_BYTES)
            && start.addr().is_multiple_of(ROW_BYTES);
        fits.then(|| Place {
            start: start.cast(),
            strip: STRIP_ROWS * row,
            row,
            step: ROW_BYTES,
            lower: TILE_ROWS * row,
            laid_out: None,
        })
    }
}

/// Lines of a packed panel.
fn panel_lines<T: Operand>(pass: &[Part]) -> usize {
    pass.iter()
        .map(|part| T::FORM.panel_rows(part.steps.len()) * VECTORS)
        .sum()
}

/// Lines of a packed panel's short terms.
fn short_lines<T>(terms: &[&Term<'_, T>]) -> usize {
    terms.iter().map(|term| term.right.depth() * VECTORS).sum()
}

/// Where the strips of one part lie, in bytes.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: *const u8,
    /// From one strip to the next.
    strip: usize,
    /// From one row to the next.
    row: usize,
    /// From one step to the next.
    step: usize,
    /// From the upper to the lower sixteen rows.
    lower: usize,
    /// Lines before it in the memory of what is laid out; `None` where it lies as the tiles want it.
    laid_out: Option<usize>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            start: std::ptr::null(),
            strip: 0,
            row: 0,
            step: 0,
            lower: 0,
            laid_out: None,
        }
    }
}

#[derive(Debug, Default)]
struct Places([Place; MAX_TERMS]);

// SAFETY: the strips are only read.
unsafe impl Sync for Places {}

/// What all tasks of a pass share.
struct Task<'a, T> {
    block: &'a Block<'a, T>,
    /// The pass.
    number: usize,
    places: &'a Places,
    /// Lines from one packed panel to the next.
    stride: usize,
    sums: Lines,
}

impl<T: Operand> Task<'_, T> {
    /// Packs the panels and streams the strips past them. Tasks begin at different strips: two that wrote to neighbouring
    /// columns of the same rows would take lines of the result from each other.
    ///
    /// # Safety
    /// As [`multiply`]; these strips of these panels belong to this call alone.
    unsafe fn run<O: Element>(&self, strips: Range<usize>, panels: Range<usize>, result: &Result<O>) {
        RIGHT.with_borrow_mut(|right| {
            grow(right, panels.len() * self.stride, Line::ZERO);
            // SAFETY: the caller's promise; nothing that runs below configures tiles.
            unsafe {
                self.pack(panels.clone(), right);
                let _tiles = Tiles::configure();
                let mut stream = Stream::new(result, self.block.short);
                let turn = panels.start * strips.len() / self.block.panels();
                for strip in (strips.start + turn..strips.end).chain(strips.start..strips.start + turn) {
                    stream.want(self.strip_after(strip, &strips));
                    for (index, panel) in panels.clone().enumerate() {
                        self.tile(strip, panel, right.as_ptr().add(index * self.stride), &mut stream);
                    }
                }
                stream.end();
            }
        });
    }

    /// The lines of the strip that follows, where the strips of the pass are one piece that was laid out.
    fn strip_after(&self, strip: usize, strips: &Range<usize>) -> Range<*const Line> {
        let next = if strip + 1 == strips.end {
            strips.start
        } else {
            strip + 1
        };
        let Place { start, strip, .. } = self.places.0[0];
        let start = start.wrapping_add(next * strip).cast::<Line>();
        let is_one = self.block.passes[self.number].len() == 1 && self.places.0[0].laid_out.is_some();
        start..start.wrapping_add(if is_one { strip / size_of::<Line>() } else { 0 })
    }

    /// Packs the panels one after the other.
    unsafe fn pack(&self, panels: Range<usize>, lines: &mut [Line]) {
        let Block { passes, columns, .. } = self.block;
        for (first, lines) in panels
            .clone()
            .step_by(TASK_PANELS)
            .zip(lines.chunks_mut(TASK_PANELS * self.stride))
        {
            let last = (first + TASK_PANELS).min(panels.end);
            let group = Panels {
                lines,
                columns: columns.start + first * PANEL..(columns.start + last * PANEL).min(columns.end),
                stride: self.stride,
                before: 0,
            };
            // SAFETY: the caller's promise is the same.
            unsafe {
                self.block
                    .pack_panels(&passes[self.number], group, self.number + 1 == passes.len())
            };
        }
    }

    /// Multiplies one strip with one packed panel.
    unsafe fn tile<O: Element>(
        &self,
        strip: usize,
        panel: usize,
        mut right: *const Line,
        stream: &mut Stream<'_, T, O>,
    ) {
        let Block {
            passes, rows, columns, ..
        } = self.block;
        let (row, column) = (rows.start + strip * STRIP_ROWS, columns.start + panel * PANEL);
        let columns = column..(column + PANEL).min(columns.end);
        let vectors = columns.len().div_ceil(LANES);
        let kept = (strip * self.block.panels() + panel) * TILE_SUMS / LANES;
        let pass = Pass {
            // SAFETY: there are sums for each tile where there are several passes.
            kept: (passes.len() > 1).then(|| unsafe { self.sums.0.add(kept).cast() }),
            is_first: self.number == 0,
            is_last: self.number + 1 == passes.len(),
        };
        let pieces = passes[self.number].iter().zip(&self.places.0).map(|(part, place)| {
            let upper = place.start.wrapping_add(strip * place.strip);
            let left = Strip {
                upper,
                lower: upper.wrapping_add(place.lower),
                row: place.row,
                step: place.step,
            };
            let steps = part.steps.len();
            let piece = Piece { steps, left, right };
            right = right.wrapping_add(T::FORM.panel_rows(steps) * vectors);
            piece
        });
        let rows = (rows.end - row).min(STRIP_ROWS);
        // SAFETY: the panels were packed for this pass, the strips lie where the places say, and the tile of the result belongs
        // to this task alone.
        unsafe { stream.multiply(&Tile { row, rows, columns }, pass, pieces) };
    }
}
