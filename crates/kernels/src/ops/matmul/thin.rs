//! Products of two matrices of tokens of which one has few columns: the gradients of adapters.
//!
//! result (N, C) += alpha u^T x with u (T, N), x (T, C), N small; or its transpose. The large products would read x, which is in no
//! cache, in pieces of a line, or copy it first for the sake of a few rows. Here every task has some of the tokens and reads
//! their rows of x once, in order; what it has of the result lies in the second-level cache. The tasks' results are added
//! up in their order. How the tokens are shared out depends on their number alone.

use super::instructions::Instructions;
use super::thin_tile::{Block, TILE};
use crate::ops::element::Element;
use crate::ops::scratch::grow;
use crate::thread_pool;
use peft_tune_core::plan::products::thin::{self, COLUMNS, ROWS};
use std::cell::RefCell;
use std::ops::Range;

/// Tokens whose rows of x are read side by side.
const BLOCK: usize = 32;

/// A matrix of tokens, row-major.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a, T> {
    pub values: &'a [T],
    pub columns: usize,
    /// Values from one token to the next.
    pub stride: usize,
}

/// Matrix that is added to, row-major.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub start: *mut f32,
    /// Whether the columns of u are its columns, not its rows.
    pub is_transposed: bool,
    /// Values from one row to the next.
    pub stride: usize,
    /// Factor on the product.
    pub alpha: f32,
}

// SAFETY: tasks write disjoint parts of the result.
unsafe impl Sync for Target {}

thread_local! {
    /// Sums of all tasks, which the calling thread keeps.
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Memory that several threads write to, each its own part.
struct Sums(*mut f32);

// SAFETY: every part is reached from one thread.
unsafe impl Sync for Sums {}

impl Sums {
    /// # Safety
    /// The part lies within the memory, and nothing writes it while it is borrowed.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the parts are disjoint")]
    unsafe fn part(&self, start: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SUMS.take();
}

/// Adds alpha u^T x, over `tokens` tokens, to the target.
///
/// # Safety
/// The processor has the instructions `I`; the target is valid for the columns of u and x.
pub(super) unsafe fn add<I: Instructions, U: Element, X: Element>(
    u: Tokens<'_, U>,
    x: Tokens<'_, X>,
    tokens: usize,
    target: Target,
) {
    let tasks = thin::tasks(tokens);
    let (len, share) = (thin::sums(u.columns, x.columns), tokens.div_ceil(tasks));
    let tiles = len / TILE;
    let mut memory = SUMS.take();
    grow(&mut memory, tasks * len, 0.0);
    let sums = Sums(memory.as_mut_ptr());
    thread_pool::for_each(tasks, |task| {
        let tokens = task * share..((task + 1) * share).min(tokens);
        // SAFETY: the caller's promise; each task has sums of its own.
        unsafe { sum::<I, _, _>(u, x, tokens, sums.part(task * len, len)) };
    });
    thread_pool::for_each(tiles, |tile| {
        let (row, column) = (
            tile / x.columns.div_ceil(COLUMNS) * ROWS,
            tile % x.columns.div_ceil(COLUMNS) * COLUMNS,
        );
        // SAFETY: the sums are complete; tiles are disjoint.
        unsafe {
            let total = sums.part(tile * TILE, TILE);
            for task in 1..tasks {
                let share = sums.part(task * len + tile * TILE, TILE);
                total.iter_mut().zip(share).for_each(|(total, share)| *total += *share);
            }
            let rows = row..(row + ROWS).min(u.columns);
            target.add(total, rows, column..(column + COLUMNS).min(x.columns));
        }
    });
    SUMS.set(memory);
}

impl Target {
    /// Adds a tile.
    unsafe fn add(&self, tile: &[f32], rows: Range<usize>, columns: Range<usize>) {
        let add = |row: usize, column: usize| {
            let sum = tile[(row - rows.start) * COLUMNS + column - columns.start];
            let place = match self.is_transposed {
                true => column * self.stride + row,
                false => row * self.stride + column,
            };
            // SAFETY: the caller's promise.
            unsafe { *self.start.add(place) += self.alpha * sum };
        };
        match self.is_transposed {
            true => columns
                .clone()
                .for_each(|column| rows.clone().for_each(|row| add(row, column))),
            false => rows
                .clone()
                .for_each(|row| columns.clone().for_each(|column| add(row, column))),
        }
    }
}

/// The sums of some tokens, tile after tile.
///
/// # Safety
/// The processor has the instructions `I`.
unsafe fn sum<I: Instructions, U: Element, X: Element>(
    u: Tokens<'_, U>,
    x: Tokens<'_, X>,
    tokens: Range<usize>,
    sums: &mut [f32],
) {
    let mut factors = [[0f32; ROWS]; BLOCK];
    for first in tokens.clone().step_by(BLOCK) {
        let block = first..(first + BLOCK).min(tokens.end);
        let is_first = first == tokens.start;
        let across = sums.chunks_exact_mut(x.columns.div_ceil(COLUMNS) * TILE);
        for (row, tiles) in (0..u.columns).step_by(ROWS).zip(across) {
            for (token, factors) in block.clone().zip(&mut factors) {
                let values = &u.values[token * u.stride..][row..(row + ROWS).min(u.columns)];
                *factors = [0.0; ROWS];
                for (factor, value) in factors.iter_mut().zip(values) {
                    *factor = value.widen();
                }
            }
            for (column, tile) in (0..x.columns).step_by(COLUMNS).zip(tiles.as_chunks_mut::<TILE>().0) {
                let values = Block {
                    values: &x.values[first * x.stride + column..],
                    stride: x.stride,
                    columns: x.columns - column,
                };
                if is_first {
                    tile.fill(0.0);
                }
                // SAFETY: the caller's promise.
                unsafe { I::add_thin(&factors[..block.len()], values, tile) };
            }
        }
    }
}
