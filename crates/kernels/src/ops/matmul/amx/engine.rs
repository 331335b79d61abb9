//! Passes, tasks and the memory that they take.

use super::form::{Form, Operand};
use super::kernel::{MrPanel, PanelProduct};
use super::layout::{LEFT_BYTES, MR, NR, TILE_BYTES, VECTORS};
use super::right::{self, NrPanels, TASK_NR_PANELS};
use super::short;
use super::stream::{KcBlock, Stream, Tile};
use super::unit::{ROW_BYTES, TILE_ROWS, Tiles};
use crate::ops::element::Element;
use crate::ops::matmul::operand::{Result, Side, Term};
use crate::ops::matmul::tile::{LANES, Line};
use crate::ops::scratch::grow;
use crate::thread_pool;
use peft_tune_core::plan::products::{MAX_TERMS, amx as blocking};
use std::cell::RefCell;
use std::ops::Range;

/// F32 sums of a tile of the result.
const TILE_SUMS: usize = MR * NR;

/// Memory that a calling thread keeps from one product to the next, for all threads.
#[derive(Default)]
struct Memory {
    left: Vec<Line>,
    /// Tiles of sums, where there are several KC blocks.
    sums: Vec<Line>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
    /// Packed NR micro-panels of a task.
    static RIGHT: RefCell<Vec<Line>> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    MEMORY.take();
    RIGHT.take();
}

/// Steps of one term within a KC block.
#[derive(Clone, Debug)]
struct KcSlice {
    term: usize,
    steps: Range<usize>,
}

/// Computes the sum of `terms`, (rows, columns), into `result`.
///
/// # Safety
/// The unit is available; `result` is valid for (rows, columns).
pub(crate) unsafe fn multiply<T: Operand, O: Element>(
    terms: &[Term<'_, T>],
    rows: usize,
    columns: usize,
    result: Result<O>,
) {
    // Where all terms are short, none is.
    let has_short = T::FORM == Form::Digits && !terms.iter().all(short::is_short);
    let (short, terms): (Vec<_>, Vec<_>) = terms.iter().partition(|term| has_short && short::is_short(term));
    let kc_blocks = kc_blocks(&terms);
    let height = rows.min(blocking::ROW_BLOCK).next_multiple_of(MR);
    let width = match kc_blocks.len() {
        1 => columns,
        _ => blocking::panels_with_sums(height / MR) * NR,
    };
    let mut memory = MEMORY.take();
    for row in (0..rows).step_by(blocking::ROW_BLOCK) {
        for column in (0..columns).step_by(width.max(1)) {
            let block = Block {
                terms: &terms,
                short: &short,
                kc_blocks: &kc_blocks,
                rows: row..(row + blocking::ROW_BLOCK).min(rows),
                columns: column..(column + width).min(columns),
            };
            // SAFETY: the caller's promise is the same.
            unsafe { block.run(&result, &mut memory) };
        }
    }
    MEMORY.set(memory);
}

/// Splits the summed dimensions of all terms into KC blocks of bounded length. A term that fits into a KC block is not split.
fn kc_blocks<T: Operand>(terms: &[&Term<'_, T>]) -> Vec<Vec<KcSlice>> {
    let most = blocking::KC / T::FORM.step();
    let (mut kc_blocks, mut room) = (vec![Vec::new()], most);
    for (term, operands) in terms.iter().enumerate() {
        let (mut start, end) = (0, operands.right.depth().div_ceil(T::FORM.step()));
        while start < end {
            let left = end - start;
            if room == 0 || (left > room && left <= most) {
                kc_blocks.push(Vec::new());
                room = most;
            }
            let steps = start..start + left.min(room);
            (start, room) = (steps.end, room - steps.len());
            if let Some(kc_block) = kc_blocks.last_mut() {
                kc_block.push(KcSlice { term, steps });
            }
        }
    }
    kc_blocks
}

/// A part of the result whose left operand is laid out at once.
struct Block<'a, T> {
    terms: &'a [&'a Term<'a, T>],
    /// Short terms, which are added by multiply-adds, in no KC block.
    short: &'a [&'a Term<'a, T>],
    kc_blocks: &'a [Vec<KcSlice>],
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
    fn mr_panels(&self) -> usize {
        self.rows.len().div_ceil(MR)
    }

    fn nr_panels(&self) -> usize {
        self.columns.len().div_ceil(NR)
    }

    /// # Safety
    /// Requirements of [`multiply`].
    unsafe fn run<O: Element>(&self, result: &Result<O>, memory: &mut Memory) {
        let tiles = if self.kc_blocks.len() > 1 {
            self.mr_panels() * self.nr_panels()
        } else {
            0
        };
        grow(&mut memory.sums, tiles * TILE_SUMS / LANES, Line::ZERO);
        let sums = Lines(memory.sums.as_mut_ptr());
        for (number, kc_block) in self.kc_blocks.iter().enumerate() {
            let (places, mr_panels) = self.place(kc_block, &mut memory.left);
            // SAFETY: whoever has the unit has the rest.
            thread_pool::for_each(mr_panels, |mr_panel| unsafe {
                self.lay_out(kc_block, &places, mr_panel)
            });
            let stride = self.stride(number);
            let (bytes, threads) = (stride * size_of::<Line>(), thread_pool::threads_here());
            let (group, height) = blocking::task_shape(self.mr_panels(), self.nr_panels(), bytes, threads);
            let (groups, heights) = (self.nr_panels().div_ceil(group), self.mr_panels().div_ceil(height));
            let task = Task {
                block: self,
                number,
                places: &places,
                stride,
                sums,
            };
            thread_pool::for_each(groups * heights, |index| {
                let (nr_panel, mr_panel) = (index / heights * group, index % heights * height);
                let mr_panels = mr_panel..(mr_panel + height).min(self.mr_panels());
                // SAFETY: the caller's promise; tasks cover disjoint parts of the result.
                unsafe { task.run(mr_panels, nr_panel..(nr_panel + group).min(self.nr_panels()), result) };
            });
        }
    }

    /// Addresses of the MR micro-panels of each part of the KC block, as they are or in `memory`, and how many there
    /// are to lay out.
    fn place(&self, kc_block: &[KcSlice], memory: &mut Vec<Line>) -> (PanelAddresses, usize) {
        let (mr_panels, mut lines) = (self.mr_panels(), 0);
        let mut places = PanelAddresses::default();
        for (place, part) in places.0.iter_mut().zip(kc_block) {
            let mr_panel_lines = T::FORM.mr_panel_lines(part.steps.len());
            *place = self.in_place(part).unwrap_or(PanelAddress {
                mr_panel: mr_panel_lines * size_of::<Line>(),
                row: ROW_BYTES,
                step: LEFT_BYTES,
                lower: TILE_BYTES,
                laid_out: Some(lines),
                start: std::ptr::null(),
            });
            lines += place.laid_out.map_or(0, |_| mr_panels * mr_panel_lines);
        }
        grow(memory, lines, Line::ZERO);
        for place in &mut places.0 {
            if let Some(first) = place.laid_out {
                // SAFETY: the memory has room for all MR micro-panels.
                place.start = unsafe { memory.as_ptr().add(first).cast() };
            }
        }
        (places, if lines > 0 { mr_panels } else { 0 })
    }

    /// Lays out one MR micro-panel of the parts that are not taken where they lie.
    unsafe fn lay_out(&self, kc_block: &[KcSlice], places: &PanelAddresses, mr_panel: usize) {
        let row = self.rows.start + mr_panel * MR;
        let rows = row..(row + MR).min(self.rows.end);
        for (place, part) in places
            .0
            .iter()
            .zip(kc_block)
            .filter(|(place, _)| place.laid_out.is_some())
        {
            let (term, lines) = (&self.terms[part.term], place.mr_panel / size_of::<Line>());
            // SAFETY: the MR micro-panel lies within the memory of the left operand, and belongs to this task alone.
            unsafe {
                let mr_panel = Lines(place.start.cast_mut().cast()).part(mr_panel * lines, lines);
                T::FORM.pack_left(
                    &term.left,
                    term.right.depth(),
                    rows.clone(),
                    part.steps.clone(),
                    mr_panel,
                );
            }
        }
    }

    /// Packs some NR micro-panels.
    unsafe fn pack_nr_panels(&self, kc_block: &[KcSlice], mut nr_panels: NrPanels<'_>, is_last: bool) {
        for part in kc_block {
            // SAFETY: the caller's promise is the same.
            unsafe {
                right::pack(
                    T::FORM,
                    &self.terms[part.term].right,
                    part.steps.clone(),
                    &mut nr_panels,
                )
            };
            nr_panels.before += T::FORM.nr_panel_rows(part.steps.len());
        }
        for term in self.short.iter().filter(|_| is_last) {
            for (nr_panel, column) in nr_panels.columns.clone().step_by(NR).enumerate() {
                let columns = NR.min(nr_panels.columns.end - column);
                let start = nr_panel * nr_panels.stride + nr_panels.before * columns.div_ceil(LANES);
                // SAFETY: the caller's promise is the same.
                unsafe { short::pack(&term.right, column, columns, &mut nr_panels.lines[start..]) };
            }
            nr_panels.before += term.right.depth();
        }
    }

    /// Lines from one packed NR micro-panel of a KC block to the next.
    fn stride(&self, number: usize) -> usize {
        let short = if number + 1 == self.kc_blocks.len() {
            self.short
        } else {
            &[]
        };
        nr_panel_lines::<T>(&self.kc_blocks[number]) + short_lines(short)
    }

    /// The part where it lies: BF16 rows of whole steps that begin at whole cache lines, in whole MR micro-panels.
    fn in_place(&self, part: &KcSlice) -> Option<PanelAddress> {
        let Term { left, right } = &self.terms[part.term];
        let start = left
            .values
            .as_ptr()
            .wrapping_add(self.rows.start * left.stride + part.steps.start * T::FORM.step());
        let row = left.stride * size_of::<T>();
        let fits = T::FORM == Form::Pairs
            && left.side == Side::Straight
            && self.rows.len().is_multiple_of(MR)
            && right.depth().is_multiple_of(T::FORM.step())
            && row.is_multiple_of(ROW_BYTES)
            && start.addr().is_multiple_of(ROW_BYTES);
        fits.then(|| PanelAddress {
            start: start.cast(),
            mr_panel: MR * row,
            row,
            step: ROW_BYTES,
            lower: TILE_ROWS * row,
            laid_out: None,
        })
    }
}

/// Lines of a packed NR micro-panel.
fn nr_panel_lines<T: Operand>(kc_block: &[KcSlice]) -> usize {
    kc_block
        .iter()
        .map(|part| T::FORM.nr_panel_rows(part.steps.len()) * VECTORS)
        .sum()
}

/// Lines of a packed NR micro-panel's short terms.
fn short_lines<T>(terms: &[&Term<'_, T>]) -> usize {
    terms.iter().map(|term| term.right.depth() * VECTORS).sum()
}

/// Address of the MR micro-panels of one part, and distances in bytes.
#[derive(Clone, Copy, Debug)]
struct PanelAddress {
    start: *const u8,
    /// Distance from one MR micro-panel to the next.
    mr_panel: usize,
    /// Distance from one row to the next.
    row: usize,
    /// Distance from one step to the next.
    step: usize,
    /// Distance from the upper to the lower sixteen rows.
    lower: usize,
    /// Lines before it in the memory of what is laid out; `None` where it lies as the tiles want it.
    laid_out: Option<usize>,
}

impl Default for PanelAddress {
    fn default() -> Self {
        Self {
            start: std::ptr::null(),
            mr_panel: 0,
            row: 0,
            step: 0,
            lower: 0,
            laid_out: None,
        }
    }
}

#[derive(Debug, Default)]
struct PanelAddresses([PanelAddress; MAX_TERMS]);

// SAFETY: the MR micro-panels are only read.
unsafe impl Sync for PanelAddresses {}

/// Inputs that all tasks of a KC block share.
struct Task<'a, T> {
    block: &'a Block<'a, T>,
    /// The KC block.
    number: usize,
    places: &'a PanelAddresses,
    /// Lines from one packed NR micro-panel to the next.
    stride: usize,
    sums: Lines,
}

impl<T: Operand> Task<'_, T> {
    /// Packs the NR micro-panels and streams the MR micro-panels past them. Tasks begin at different MR micro-panels: two that wrote to neighbouring
    /// columns of the same rows would take lines of the result from each other.
    ///
    /// # Safety
    /// Requirements of [`multiply`]; these MR micro-panels of these NR micro-panels belong to this call alone.
    unsafe fn run<O: Element>(&self, mr_panels: Range<usize>, nr_panels: Range<usize>, result: &Result<O>) {
        RIGHT.with_borrow_mut(|right| {
            grow(right, nr_panels.len() * self.stride, Line::ZERO);
            // SAFETY: the caller's promise; nothing that runs below configures tiles.
            unsafe {
                self.pack(nr_panels.clone(), right);
                let _tiles = Tiles::configure();
                let mut stream = Stream::new(result, self.block.short);
                let turn = nr_panels.start * mr_panels.len() / self.block.nr_panels();
                for mr_panel in (mr_panels.start + turn..mr_panels.end).chain(mr_panels.start..mr_panels.start + turn) {
                    stream.want(self.mr_panel_after(mr_panel, &mr_panels));
                    for (index, nr_panel) in nr_panels.clone().enumerate() {
                        self.tile(mr_panel, nr_panel, right.as_ptr().add(index * self.stride), &mut stream);
                    }
                }
                stream.end();
            }
        });
    }

    /// The lines of the MR micro-panel that follows, where the MR micro-panels of the KC block are one piece that was laid out.
    fn mr_panel_after(&self, mr_panel: usize, mr_panels: &Range<usize>) -> Range<*const Line> {
        let next = if mr_panel + 1 == mr_panels.end {
            mr_panels.start
        } else {
            mr_panel + 1
        };
        let PanelAddress { start, mr_panel, .. } = self.places.0[0];
        let start = start.wrapping_add(next * mr_panel).cast::<Line>();
        let is_one = self.block.kc_blocks[self.number].len() == 1 && self.places.0[0].laid_out.is_some();
        start..start.wrapping_add(if is_one { mr_panel / size_of::<Line>() } else { 0 })
    }

    /// Packs the NR micro-panels one after the other.
    unsafe fn pack(&self, nr_panels: Range<usize>, lines: &mut [Line]) {
        let Block { kc_blocks, columns, .. } = self.block;
        for (first, lines) in nr_panels
            .clone()
            .step_by(TASK_NR_PANELS)
            .zip(lines.chunks_mut(TASK_NR_PANELS * self.stride))
        {
            let last = (first + TASK_NR_PANELS).min(nr_panels.end);
            let group = NrPanels {
                lines,
                columns: columns.start + first * NR..(columns.start + last * NR).min(columns.end),
                stride: self.stride,
                before: 0,
            };
            // SAFETY: the caller's promise is the same.
            unsafe {
                self.block
                    .pack_nr_panels(&kc_blocks[self.number], group, self.number + 1 == kc_blocks.len())
            };
        }
    }

    /// Multiplies one MR micro-panel with one packed NR micro-panel.
    unsafe fn tile<O: Element>(
        &self,
        mr_panel: usize,
        nr_panel: usize,
        mut right: *const Line,
        stream: &mut Stream<'_, T, O>,
    ) {
        let Block {
            kc_blocks,
            rows,
            columns,
            ..
        } = self.block;
        let (row, column) = (rows.start + mr_panel * MR, columns.start + nr_panel * NR);
        let columns = column..(column + NR).min(columns.end);
        let vectors = columns.len().div_ceil(LANES);
        let kept = (mr_panel * self.block.nr_panels() + nr_panel) * TILE_SUMS / LANES;
        let kc_block = KcBlock {
            // SAFETY: there are sums for each tile where there are several KC blocks.
            kept: (kc_blocks.len() > 1).then(|| unsafe { self.sums.0.add(kept).cast() }),
            is_first: self.number == 0,
            is_last: self.number + 1 == kc_blocks.len(),
        };
        let pieces = kc_blocks[self.number].iter().zip(&self.places.0).map(|(part, place)| {
            let upper = place.start.wrapping_add(mr_panel * place.mr_panel);
            let left = MrPanel {
                upper,
                lower: upper.wrapping_add(place.lower),
                row: place.row,
                step: place.step,
            };
            let steps = part.steps.len();
            let piece = PanelProduct { steps, left, right };
            right = right.wrapping_add(T::FORM.nr_panel_rows(steps) * vectors);
            piece
        });
        let rows = (rows.end - row).min(MR);
        // SAFETY: the NR micro-panels were packed for this KC block, the MR micro-panels lie where the places say, and the tile of the result belongs
        // to this task alone.
        unsafe { stream.multiply(&Tile { row, rows, columns }, kc_block, pieces) };
    }
}
