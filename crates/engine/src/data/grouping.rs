//! Rows of similar length next to each other, in an order that is still random.
//!
//! The shuffled rows of an epoch are cut into spans of 50 global batches; within a span the longest rows come first, and
//! the global batches of a span then change places at random. This is the order that transformers'
//! `LengthGroupedSampler` gives, but for the places of the batches: there they stay sorted.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use super::order::Permutation;

/// An epoch in the order that is grouped.
pub(super) struct Epoch<F> {
    pub number: u64,
    pub rows: usize,
    /// Decides how batches change places.
    pub key: u64,
    /// The row at a position.
    pub at: F,
}

/// Global batches in a span.
const SPAN: usize = 50;

/// The grouped order of rows, a span at a time.
#[derive(Clone, Debug)]
pub(super) struct LengthGroups {
    global_batch: usize,
    /// The span that was asked for last: rows are asked for one after the other.
    last: Arc<Mutex<Option<Span>>>,
}

#[derive(Clone, Debug)]
struct Span {
    epoch: u64,
    number: usize,
    rows: Vec<u32>,
}

impl LengthGroups {
    /// Groups for steps of `global_batch` rows.
    pub(super) fn new(global_batch: usize) -> Self {
        Self {
            global_batch: global_batch.max(1),
            last: Arc::default(),
        }
    }

    /// The row at `position` of `epoch`, whose rows have `tokens` tokens each.
    pub(super) fn row_at(
        &self,
        epoch: &Epoch<impl Fn(usize) -> usize>,
        position: usize,
        tokens: impl Fn(usize) -> usize,
    ) -> usize {
        let length = SPAN.saturating_mul(self.global_batch);
        let (number, within) = (position / length, position % length);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.take_if(|span| span.epoch == epoch.number && span.number == number);
        let span = known.unwrap_or_else(|| Span {
            epoch: epoch.number,
            number,
            rows: self.sorted(number * length, epoch, tokens),
        });
        let row = span.rows[within] as usize;
        *last = Some(span);
        row
    }

    /// The span that begins at `first`.
    fn sorted(
        &self,
        first: usize,
        epoch: &Epoch<impl Fn(usize) -> usize>,
        tokens: impl Fn(usize) -> usize,
    ) -> Vec<u32> {
        let end = epoch
            .rows
            .min(first.saturating_add(SPAN.saturating_mul(self.global_batch)));
        let mut rows: Vec<u32> = (first..end).map(|position| (epoch.at)(position) as u32).collect();
        rows.sort_by_key(|row| Reverse(tokens(*row as usize)));
        // A batch that is not full ends the span: it is the last step of the epoch.
        let full = rows.len() / self.global_batch;
        let order = Permutation::new(epoch.key, first as u64, full);
        let batches = (0..full).flat_map(|batch| {
            let start = order.at(batch) * self.global_batch;
            rows[start..start + self.global_batch].iter().copied()
        });
        let rest = rows[full * self.global_batch..].iter().copied();
        batches.chain(rest).collect()
    }
}
