//! How the fused forms cut attention into blocks, and how a block reaches its rows.
//!
//! The query heads of a group share a key head, and lie next to each other in memory. A block therefore stacks them: its
//! rows are (query, head of the group), and one product with the keys serves the whole group without copying keys.

use super::Settings;
use crate::ops::element::Element;
use crate::ops::simd::multiversion;
use peft_tune_core::plan::attention::{Heads, first_key};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The rows of queries from `token` on in a (T, Hq, `width`) tensor: all heads of the group at once.
pub(super) fn query_rows(heads: Heads, token: usize, key_head: usize, width: usize) -> Rows {
    let width = heads.group() * width;
    Rows {
        token,
        stride: heads.key * width,
        offset: key_head * width,
        width,
    }
}

/// The rows of keys or values of one head from `token` on in a (T, Hkv, `width`) tensor.
pub(super) fn key_rows(heads: Heads, token: usize, key_head: usize, width: usize) -> Rows {
    Rows {
        token,
        stride: heads.key * width,
        offset: key_head * width,
        width,
    }
}

/// Span of consecutive queries of one document, for one key head.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// First token of the document.
    pub start: usize,
    /// Queries, counted from the start of the document.
    pub queries: Range<usize>,
    pub key_head: usize,
}

impl Span {
    /// The spans of at most `longest` queries that make up a stream.
    pub(super) fn all(offsets: &[u32], key_heads: usize, longest: usize) -> Vec<Self> {
        let mut spans = Vec::new();
        for document in offsets.windows(2) {
            let (start, length) = (document[0] as usize, (document[1] - document[0]) as usize);
            for key_head in 0..key_heads {
                for first in (0..length).step_by(longest) {
                    let queries = first..(first + longest).min(length);
                    spans.push(Self {
                        start,
                        queries,
                        key_head,
                    });
                }
            }
        }
        spans
    }

    /// Keys that the queries of `queries` see, counted from the start of the document.
    pub(super) fn keys(queries: &Range<usize>, settings: &Settings) -> Range<usize> {
        first_key(queries.start, settings.window)..queries.end
    }
}

/// Keys of the block `keys` that the query sees, counted from the start of the block.
#[inline(always)]
pub(super) fn visible(query: usize, keys: &Range<usize>, window: usize) -> Range<usize> {
    let end = (query + 1).clamp(keys.start, keys.end) - keys.start;
    let start = (query + 1).saturating_sub(window).max(keys.start) - keys.start;
    start.min(end)..end
}

/// Reads `heads` neighbouring heads of consecutive tokens from a (T, all heads, d) tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// First token.
    pub token: usize,
    /// Values of a token.
    pub stride: usize,
    /// First value within a token.
    pub offset: usize,
    /// Values that are taken from a token.
    pub width: usize,
}

multiversion! {
    /// Copies rows into `block`, as F32 times `scale`.
    pub(crate) fn gather<T: Element>(values: &[T], rows: Rows, scale: f32, block: &mut [f32]) {
        let tokens = values[rows.token * rows.stride..].chunks(rows.stride);
        for (row, token) in block.chunks_exact_mut(rows.width).zip(tokens) {
            for (place, value) in row.iter_mut().zip(&token[rows.offset..][..rows.width]) {
                *place = value.widen() * scale;
            }
        }
    }
}

/// The result of the fused forms: tasks write their own rows of it from several threads.
pub(crate) struct Shared<'a, T>(&'a [std::cell::UnsafeCell<MaybeUninit<T>>]);

// SAFETY: whoever writes promises to be the only one there.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Element> Shared<'a, T> {
    pub(crate) fn new(slots: &'a mut [MaybeUninit<T>]) -> Self {
        // SAFETY: the cell has the layout of what it holds, and the borrow is exclusive.
        Self(unsafe { &*(std::ptr::from_mut(slots) as *const [std::cell::UnsafeCell<MaybeUninit<T>>]) })
    }

    /// Writes `block` times `scale` to the rows.
    ///
    /// # Safety
    /// No other thread writes to or reads from these rows.
    pub(crate) unsafe fn scatter(&self, block: &[f32], rows: Rows, scale: f32) {
        for (index, row) in block.chunks_exact(rows.width).enumerate() {
            let start = (rows.token + index) * rows.stride + rows.offset;
            let cells = &self.0[start..start + rows.width];
            // SAFETY: the caller's promise; a cell may be written through a shared reference.
            let places: &mut [MaybeUninit<T>] =
                unsafe { std::slice::from_raw_parts_mut(cells.as_ptr().cast_mut().cast(), rows.width) };
            scatter_row(row, scale, places);
        }
    }
}

multiversion! {
    fn scatter_row<T: Element>(row: &[f32], scale: f32, places: &mut [MaybeUninit<T>]) {
        for (place, value) in places.iter_mut().zip(row) {
            place.write(T::narrow(value * scale));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_every_query_of_every_head_once() {
        let spans = Span::all(&[0, 5, 5, 9], 2, 3);
        let mut seen: Vec<(usize, usize)> = spans
            .iter()
            .flat_map(|span| span.queries.clone().map(|query| (span.start + query, span.key_head)))
            .collect();
        seen.sort_unstable();
        assert_eq!(
            seen,
            (0..9).flat_map(|token| [(token, 0), (token, 1)]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn visible_keys_are_the_causal_window() {
        for (query, start, end, window) in [
            (5, 0, 8, usize::MAX),
            (5, 0, 4, 3),
            (5, 4, 8, 3),
            (2, 4, 8, 9),
            (20, 4, 8, 2),
        ] {
            let expected: Vec<usize> = (start..end)
                .filter(|key| *key <= query && query - *key < window)
                .collect();
            let seen: Vec<usize> = visible(query, &(start..end), window).map(|key| key + start).collect();
            assert_eq!(seen, expected, "query {query}, keys {start}..{end}, window {window}");
        }
    }
}
