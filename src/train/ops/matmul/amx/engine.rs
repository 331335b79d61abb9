//! Passes, tasks and the memory that they take.

use super::kernel::{self, Parts, Piece, Strip, Sums};
use super::layout::{
    PANEL, PART_LEFT_BYTES, PART_LEFT_LINES, STEP, STRIP_ROWS, TILE_BYTES, VECTORS, part_right_bytes, part_right_lines,
};
use super::parts::Operand;
use super::right::Panels;
use super::unit::{ROW_BYTES, TILE_ROWS, Tiles};
use super::{left, right};
use crate::train::ops::element::Element;
use crate::train::ops::matmul::engine::MAX_TERMS;
use crate::train::ops::matmul::finish;
use crate::train::ops::matmul::operand::{Result, Side, Term};
use crate::train::ops::matmul::tile::{LANES, Line};
use crate::train::ops::team;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Steps of a pass: 1,536 values.
const PASS_STEPS: usize = 48;
/// Rows that the left operand is laid out for at once.
const ROW_BLOCK: usize = 2048;
/// Bytes of the panels that are packed at once.
const RIGHT_BYTES: usize = 16 << 20;
/// Panels that are packed by one task, so that memory is read in long pieces.
const PACK_PANELS: usize = 4;
/// Bytes of the panels that a task multiplies, within the second-level cache.
const GROUP_BYTES: usize = 1 << 20;
/// Tasks for each thread, where the result is large enough.
const TASKS_PER_THREAD: usize = 4;
/// Fewest strips of a task, which brings its panels into the cache.
const TASK_STRIPS: usize = 4;
/// F32 sums of a tile of the result.
const TILE_SUMS: usize = STRIP_ROWS * PANEL;

/// Memory that a calling thread keeps from one product to the next, for all threads.
#[derive(Default)]
struct Memory {
    left: Vec<Line>,
    right: Vec<Line>,
    /// For each packing task which operands of the pass are their first part, a bit each.
    first_parts: Vec<AtomicU8>,
    /// Tiles of sums, where there are several passes.
    sums: Vec<Line>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Lets go of what this thread keeps.
pub fn forget() {
    MEMORY.take();
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
    let passes = passes(terms);
    let panel_bytes = longest(&passes).max(1) * T::PARTS * part_right_bytes(VECTORS);
    let width = (RIGHT_BYTES / panel_bytes).max(1) * PANEL;
    let mut memory = MEMORY.take();
    for row in (0..rows).step_by(ROW_BLOCK) {
        let mut places = Places::default();
        for column in (0..columns).step_by(width) {
            let block = Block {
                terms,
                passes: &passes,
                rows: row..(row + ROW_BLOCK).min(rows),
                columns: column..(column + width).min(columns),
            };
            // SAFETY: the caller's promise is the same. With one pass all columns share the left operand.
            unsafe { block.run(&result, &mut memory, &mut places, column == 0 || passes.len() > 1) };
        }
    }
    MEMORY.set(memory);
}

fn longest(passes: &[Vec<Part>]) -> usize {
    passes.iter().map(|pass| pass_steps(pass)).max().unwrap_or(0)
}

/// Splits the summed dimensions of all terms into passes of bounded length.
fn passes<T>(terms: &[Term<'_, T>]) -> Vec<Vec<Part>> {
    let (mut passes, mut pass, mut room) = (Vec::new(), Vec::new(), PASS_STEPS);
    for (term, operands) in terms.iter().enumerate() {
        let (mut start, end) = (0, operands.right.depth().div_ceil(STEP));
        while start < end {
            let steps = start..end.min(start + room);
            start = steps.end;
            room -= steps.len();
            pass.push(Part { term, steps });
            if room == 0 {
                passes.push(std::mem::take(&mut pass));
                room = PASS_STEPS;
            }
        }
    }
    if !pass.is_empty() || passes.is_empty() {
        passes.push(pass);
    }
    passes
}

/// A part of the result whose left operand is laid out at once.
struct Block<'a, T> {
    terms: &'a [Term<'a, T>],
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
    /// As [`multiply`]; without `lay_out` the places are those of the block before, which has the same rows.
    unsafe fn run<O: Element>(&self, result: &Result<O>, memory: &mut Memory, places: &mut Places, lay_out: bool) {
        let tiles = if self.passes.len() > 1 {
            self.strips() * self.panels()
        } else {
            0
        };
        grow(&mut memory.sums, tiles * TILE_SUMS / LANES);
        let sums = Lines(memory.sums.as_mut_ptr());
        for (number, pass) in self.passes.iter().enumerate() {
            let strips = if lay_out {
                self.place(pass, &mut memory.left, places)
            } else {
                0
            };
            let right = self.pack(pass, places, strips, memory);
            let (group, height) = task_shape(self.strips(), self.panels(), pass_steps(pass) * T::PARTS);
            let (groups, heights) = (self.panels().div_ceil(group), self.strips().div_ceil(height));
            let task = Task {
                block: self,
                number,
                places,
                right,
                stride: self.stride(pass),
                first_parts: &memory.first_parts,
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

    /// Lines from one packed panel to the next.
    fn stride(&self, pass: &[Part]) -> usize {
        pass_steps(pass) * T::PARTS * part_right_lines(VECTORS)
    }

    /// Where the strips of each part of the pass lie: as they are, or in `memory`. Returns the strips to lay out.
    fn place(&self, pass: &[Part], memory: &mut Vec<Line>, places: &mut Places) -> usize {
        let (strips, mut lines) = (self.strips(), 0);
        *places = Places::default();
        for (place, part) in places.0.iter_mut().zip(pass) {
            let strip_lines = part.steps.len() * T::PARTS * PART_LEFT_LINES;
            *place = self.in_place(part).unwrap_or(Place {
                strip: strip_lines * size_of::<Line>(),
                row: ROW_BYTES,
                step: T::PARTS * PART_LEFT_BYTES,
                lower: TILE_BYTES,
                laid_out: Some(lines),
                start: std::ptr::null(),
            });
            lines += place.laid_out.map_or(0, |_| strips * strip_lines);
        }
        grow(memory, lines);
        for place in &mut places.0 {
            if let Some(first) = place.laid_out {
                // SAFETY: the memory has room for all strips.
                place.start = unsafe { memory.as_ptr().add(first).cast() };
            }
        }
        if lines > 0 { strips } else { 0 }
    }

    /// Lays out the first `strips` strips of the left operand and packs the panels, all in one loop; returns the panels.
    fn pack(&self, pass: &[Part], places: &Places, strips: usize, memory: &mut Memory) -> Lines {
        let stride = self.stride(pass);
        grow(&mut memory.right, self.panels() * stride);
        let right = Lines(memory.right.as_mut_ptr());
        let tasks = self.panels().div_ceil(PACK_PANELS);
        if memory.first_parts.len() < tasks {
            memory.first_parts.resize_with(tasks, AtomicU8::default);
        }
        let first_parts = &memory.first_parts;
        team::for_each(strips + tasks, |task| {
            // SAFETY: whoever has the unit has AVX-512 with BF16; strips and panels do not overlap.
            unsafe {
                if task < strips {
                    self.lay_out(pass, places, task);
                    return;
                }
                let first = (task - strips) * PACK_PANELS;
                let last = (first + PACK_PANELS).min(self.panels());
                let start = self.columns.start;
                let panels = Panels {
                    lines: right.part(first * stride, (last - first) * stride),
                    columns: start + first * PANEL..(start + last * PANEL).min(self.columns.end),
                    stride,
                    before: 0,
                };
                first_parts[task - strips].store(self.pack_panels(pass, panels), Relaxed);
            }
        });
        right
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
                left::pack(&term.left, term.right.depth(), rows.clone(), part.steps.clone(), strip);
            }
        }
    }

    /// Packs some panels; returns the operands that are their first part, a bit each.
    unsafe fn pack_panels(&self, pass: &[Part], mut panels: Panels<'_>) -> u8 {
        let mut first_parts = 0;
        for (index, part) in pass.iter().enumerate() {
            let (right, steps) = (&self.terms[part.term].right, part.steps.clone());
            // SAFETY: the caller's promise is the same.
            let is_first_part = unsafe {
                match T::PARTS {
                    1 => right::pack::<1>(right, steps, &mut panels),
                    _ => right::pack::<3>(right, steps, &mut panels),
                }
            };
            first_parts |= u8::from(is_first_part) << index;
            panels.before += part.steps.len();
        }
        first_parts
    }

    /// The part where it lies: BF16 rows of whole steps that begin at whole cache lines, in whole strips.
    fn in_place(&self, part: &Part) -> Option<Place> {
        let Term { left, right } = &self.terms[part.term];
        let start = left
            .values
            .as_ptr()
            .wrapping_add(self.rows.start * left.stride + part.steps.start * STEP);
        let row = left.stride * size_of::<T>();
        let fits = T::PARTS == 1
            && left.side == Side::Straight
            && self.rows.len().is_multiple_of(STRIP_ROWS)
            && right.depth().is_multiple_of(STEP)
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

/// Makes room for `lines` lines, whatever they hold, and for no more: a vector that grows by itself would take twice the
/// memory, and the old beside the new for a moment.
fn grow(memory: &mut Vec<Line>, lines: usize) {
    if memory.len() < lines {
        *memory = Vec::new();
        *memory = vec![Line::ZERO; lines];
    }
}

fn pass_steps(pass: &[Part]) -> usize {
    pass.iter().map(|part| part.steps.len()).sum()
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

/// (panels of a task, strips of a task), from the parts of all steps of a pass.
fn task_shape(strips: usize, panels: usize, parts: usize) -> (usize, usize) {
    let threads = team::threads();
    let cached = GROUP_BYTES / (parts.max(1) * part_right_bytes(VECTORS));
    let groups = panels.div_ceil(cached.max(1));
    let group = panels.div_ceil(groups);
    let blocks = (TASKS_PER_THREAD * threads).div_ceil(panels.div_ceil(group));
    (group, strips.div_ceil(blocks).max(TASK_STRIPS))
}

/// What all tasks of a pass share.
struct Task<'a, T> {
    block: &'a Block<'a, T>,
    /// The pass.
    number: usize,
    places: &'a Places,
    /// The packed panels, and the lines from one to the next.
    right: Lines,
    stride: usize,
    first_parts: &'a [AtomicU8],
    sums: Lines,
}

impl<T: Operand> Task<'_, T> {
    /// Streams the strips past the panels.
    ///
    /// # Safety
    /// As [`multiply`]; these strips of these panels belong to this call alone.
    unsafe fn run<O: Element>(&self, strips: Range<usize>, panels: Range<usize>, result: &Result<O>) {
        // SAFETY: the caller's promise; nothing that runs below configures tiles.
        unsafe {
            let _tiles = Tiles::configure();
            for strip in strips {
                for panel in panels.clone() {
                    self.tile(strip, panel, result);
                }
            }
        }
    }

    /// Multiplies one strip with one panel.
    unsafe fn tile<O: Element>(&self, strip: usize, panel: usize, result: &Result<O>) {
        let Block {
            passes, rows, columns, ..
        } = self.block;
        let pass = &passes[self.number];
        let column = columns.start + panel * PANEL;
        let vectors = (columns.end - column).div_ceil(LANES).min(VECTORS);
        let mut tile = Sums::new();
        let first_parts = self.first_parts[panel / PACK_PANELS].load(Relaxed);
        let kept = (strip * self.block.panels() + panel) * TILE_SUMS / LANES;
        // SAFETY: the panels were packed for this pass, the strips lie where the places say, there are sums for each tile
        // where there are several passes, and the tile of the result belongs to this task alone.
        unsafe {
            let sums = match passes.len() {
                1 => tile.start(),
                _ => self.sums.0.add(kept).cast::<f32>(),
            };
            let mut right = self.right.0.add(panel * self.stride).cast_const();
            kernel::begin(vectors, (self.number > 0).then_some(sums.cast_const()));
            for (index, (part, place)) in pass.iter().zip(&self.places.0).enumerate() {
                let upper = place.start.add(strip * place.strip);
                let left = Strip {
                    upper,
                    lower: upper.add(place.lower),
                    row: place.row,
                    step: place.step,
                };
                let steps = part.steps.len();
                let parts = match first_parts >> index & 1 {
                    0 => Parts::of(T::PARTS),
                    _ => Parts::of(T::PARTS).with_first_right(),
                };
                kernel::add(&Piece { steps, left, right }, parts, vectors);
                right = right.add(steps * T::PARTS * part_right_lines(vectors));
            }
            kernel::end(vectors, sums);
            if self.number + 1 == passes.len() {
                let row = rows.start + strip * STRIP_ROWS;
                let sums = std::slice::from_raw_parts(sums, (rows.end - row).min(STRIP_ROWS) * vectors * LANES);
                finish::write(result, sums, row, column..(column + PANEL).min(columns.end));
            }
        }
    }
}
