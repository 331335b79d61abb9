//! Tiles of the result, one after the other: what is left to do of a tile when its products are done is done between the steps
//! of the next one, a few rows at a time. The tile registers leave the rest of the processor idle, and a result that lies in
//! memory has time to come.

use super::digits::{self, DIGITS};
use super::form::{Form, Operand};
use super::kernel::{self, Kind, PanelProduct, Sums};
use super::layout::VECTORS;
use super::short;
use crate::ops::element::Element;
use crate::ops::matmul::finish;
use crate::ops::matmul::operand::{Result, Term};
use crate::ops::matmul::tile::{LANES, Line};
use core::arch::x86_64::*;
use std::ops::Range;

/// Rows that are ended at a time.
const ROWS: usize = 2;
/// Rows of the result that are asked for ahead.
const AHEAD: usize = 4 * ROWS;
/// Lines that are fetched at a time.
const FETCHED: usize = 2;

/// A tile of the result.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub row: usize,
    /// Rows of the tile, at most [`STRIP_ROWS`](super::layout::STRIP_ROWS).
    pub rows: usize,
    pub columns: Range<usize>,
}

/// KC block that is computed of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct KcBlock {
    /// Memory for the sums of several KC blocks: 32 rows of the tile's vectors.
    pub kept: Option<*mut f32>,
    pub is_first: bool,
    pub is_last: bool,
}

impl KcBlock {
    /// Block that is computed at once.
    pub(super) const ONLY: Self = Self {
        kept: None,
        is_first: true,
        is_last: true,
    };
}

/// The tiles of one thread.
pub(super) struct Stream<'a, T, O> {
    result: &'a Result<O>,
    short: &'a [&'a Term<'a, T>],
    /// Contents of the tile registers: for the tile that ends, and for the next one.
    levels: [[Sums; DIGITS]; 2],
    next: usize,
    /// Sums of the terms before the last.
    sums: Sums,
    ending: Ending,
    /// Lines that are not fetched yet.
    wanted: Range<*const Line>,
}

/// Work that is left to do of a tile.
#[derive(Clone, Debug)]
struct Ending {
    tile: Tile,
    /// Rows that are not done.
    rows: Range<usize>,
    vectors: usize,
    levels: [*const f32; DIGITS],
    /// Factors of the tile's rows and of its columns, in digits.
    factors: [*const f32; 2],
    sums: *mut f32,
    /// Whether there are sums to add to.
    adds: bool,
    /// Whether the sum goes to the result.
    is_last: bool,
    /// The packed NR micro-panel of the short terms.
    short: *const Line,
}

impl<'a, T: Operand, O: Element> Stream<'a, T, O> {
    /// Tiles of `result`; the terms `short` are added to each.
    pub(super) const fn new(result: &'a Result<O>, short: &'a [&'a Term<'a, T>]) -> Self {
        Self {
            result,
            short,
            levels: [const { [const { Sums::new() }; DIGITS] }; 2],
            next: 0,
            sums: Sums::new(),
            ending: Ending::NONE,
            wanted: std::ptr::null()..std::ptr::null(),
        }
    }

    /// Fetches the lines, which the tiles behind the next ones begin with, into the second-level cache meanwhile.
    pub(super) const fn want(&mut self, lines: Range<*const Line>) {
        self.wanted = lines;
    }

    /// Multiplies the pieces of one tile, and ends the one before. Where it is the last KC block, the packed NR micro-panel of the short terms
    /// lies behind that of the last piece.
    ///
    /// # Safety
    /// The tiles are configured, the pieces packed in this form, and the tile, which no one else writes to, is within the
    /// result; all that is pointed to stays until the stream [ended](Self::end). The processor has AVX-512F, BW, DQ and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn multiply(
        &mut self,
        tile: &Tile,
        kc_block: KcBlock,
        pieces: impl Iterator<Item = PanelProduct>,
    ) {
        let vectors = tile.columns.len().div_ceil(LANES);
        let mut ending = Ending {
            tile: tile.clone(),
            rows: 0..tile.rows,
            vectors,
            sums: kc_block.kept.unwrap_or(self.sums.start()),
            adds: !kc_block.is_first,
            ..Ending::NONE
        };
        let mut pieces = pieces.peekable();
        // SAFETY: the caller's promise.
        unsafe {
            if T::FORM == Form::Pairs {
                kernel::begin(vectors, None);
            }
            while let Some(piece) = pieces.next() {
                let levels = &mut self.levels[self.next];
                let (is_last, before) = (pieces.peek().is_none(), &mut self.ending);
                let wanted = &mut self.wanted;
                let between = || {
                    for _ in 0..FETCHED {
                        if wanted.start < wanted.end {
                            _mm_prefetch::<_MM_HINT_T1>(wanted.start.cast());
                            wanted.start = wanted.start.wrapping_add(1);
                        }
                    }
                    before.go_on(self.result, self.short);
                };
                match T::FORM {
                    Form::Pairs => kernel::add(&piece, Kind::Pairs, vectors, between),
                    Form::Digits => digits::multiply(&piece, levels, vectors, between),
                }
                if T::FORM == Form::Pairs {
                    if !is_last {
                        continue;
                    }
                    kernel::end(vectors, levels[0].start());
                }
                ending.levels = levels.each_mut().map(|level| level.start().cast_const());
                ending.factors = [piece.left.upper.cast(), piece.right.cast()];
                ending.is_last = is_last && kc_block.is_last;
                ending.short = piece.right.add(T::FORM.nr_panel_rows(piece.steps) * vectors);
                self.end();
                self.ending = ending.clone();
                self.next = 1 - self.next;
                ending.adds = true;
            }
        }
    }

    /// Ends the last tile.
    ///
    /// # Safety
    /// Requirements of [`multiply`](Self::multiply).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn end(&mut self) {
        while !self.ending.rows.is_empty() {
            // SAFETY: the caller's promise is the same.
            unsafe { self.ending.go_on(self.result, self.short) };
        }
    }
}

impl Ending {
    /// Ending of no tile.
    const NONE: Self = Self {
        tile: Tile {
            row: 0,
            rows: 0,
            columns: 0..0,
        },
        rows: 0..0,
        vectors: 0,
        levels: [std::ptr::null(); DIGITS],
        factors: [std::ptr::null(); 2],
        sums: std::ptr::null_mut(),
        adds: false,
        is_last: false,
        short: std::ptr::null(),
    };

    /// Ends the next rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn go_on<T: Operand, O: Element>(&mut self, result: &Result<O>, short: &[&Term<'_, T>]) {
        if self.rows.is_empty() {
            return;
        }
        // SAFETY: the caller's promise is the same.
        unsafe {
            match self.vectors {
                1 => self.end_rows::<T, O, 1>(result, short),
                _ => self.end_rows::<T, O, VECTORS>(result, short),
            }
        }
        self.rows.start = (self.rows.start + ROWS).min(self.rows.end);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn end_rows<T: Operand, O: Element, const V: usize>(&self, result: &Result<O>, short: &[&Term<'_, T>]) {
        let first = self.rows.start;
        let start = |index: usize, vector: usize| ((first + index) * V + vector) * LANES;
        let mut values = [[_mm512_setzero_ps(); V]; ROWS];
        // SAFETY: levels and sums have a vector for each row and vector, factors are there for each row and column; short terms
        // and the result are the caller's promise.
        unsafe {
            for (index, values) in values.iter_mut().enumerate() {
                for (vector, value) in values.iter_mut().enumerate() {
                    let start = start(index, vector);
                    *value = match T::FORM {
                        Form::Pairs => _mm512_load_ps(self.levels[0].add(start)),
                        Form::Digits => {
                            let [rows, columns] = self.factors;
                            let levels = self.levels.map(|level| level.add(start));
                            digits::sum(levels, *rows.add(first + index), columns.add(vector * LANES))
                        }
                    };
                    if self.adds {
                        *value = _mm512_add_ps(*value, _mm512_load_ps(self.sums.add(start)));
                    }
                    if !self.is_last {
                        _mm512_store_ps(self.sums.add(start), *value);
                    }
                }
            }
            if !self.is_last {
                return;
            }
            let (row, rows) = (self.tile.row + first, ROWS.min(self.rows.end - first));
            let mut nr_panel = self.short;
            for Term { left, right } in short {
                let rows = short::Rows {
                    start: left.values.as_ptr().add(row * left.stride).cast(),
                    stride: left.stride,
                    count: rows,
                    depth: right.depth(),
                };
                short::add(rows, nr_panel, &mut values);
                nr_panel = nr_panel.add(right.depth() * V);
            }
            for (index, values) in values.iter().take(rows).enumerate() {
                for (vector, value) in values.iter().enumerate() {
                    let column = self.tile.columns.start + vector * LANES;
                    let mask = finish::mask(self.tile.columns.end - column);
                    let start = (row + index) * result.stride + column;
                    _mm_prefetch::<_MM_HINT_ET0>(result.start.wrapping_add(start + AHEAD * result.stride).cast());
                    finish::put(result, start, mask, *value);
                }
            }
        }
    }
}
