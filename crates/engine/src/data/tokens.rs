//! Tokenised rows, uncut: what the cache holds, whatever the sequence length.
//!
//! All tables are one array of 32-bit words, in memory or mapped from the cache file, so that reading a cache costs
//! nothing but a look over it. A table of n rows and t tokens is laid out as
//!
//! | words | meaning |
//! |---|---|
//! | 2 n | length and kind of each row |
//! | t | token ids |
//! | t | labels: the target token, or [`NO_TARGET`] |

use std::ops::Range;
use std::sync::Arc;

/// Label of a token that is not a target.
pub(super) const NO_TARGET: u32 = u32::MAX;

/// What becomes of a row that is longer than the sequence length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Its end is cut away.
    Whole,
    /// It is split: running text.
    Running,
}

/// One tokenised row. `labels` is as long as `ids`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenRow {
    pub ids: Vec<u32>,
    pub labels: Vec<u32>,
    pub kind: RowKind,
}

/// How many rows went in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCounts {
    /// Rows read from the files.
    pub read: u64,
    /// Rows of these without anything to learn from.
    pub empty: u64,
}

/// Collects rows.
#[derive(Default)]
pub(super) struct TableBuilder {
    rows: Vec<u32>,
    ids: Vec<u32>,
    labels: Vec<u32>,
    pub counts: RowCounts,
}

impl TableBuilder {
    /// Adds a row; `None` counts an empty one.
    pub(super) fn push(&mut self, row: Option<TokenRow>) {
        self.counts.read += 1;
        let Some(row) = row else {
            self.counts.empty += 1;
            return;
        };
        self.rows
            .extend([row.ids.len() as u32, u32::from(row.kind == RowKind::Running)]);
        self.ids.extend_from_slice(&row.ids);
        self.labels.extend_from_slice(&row.labels);
    }

    /// The table's size.
    pub(super) fn extent(&self) -> Extent {
        Extent {
            rows: self.rows.len() / 2,
            tokens: self.ids.len(),
            counts: self.counts,
        }
    }

    /// The table's words, part by part.
    pub(super) fn parts(&self) -> [&[u32]; 3] {
        [&self.rows, &self.ids, &self.labels]
    }
}

/// Size of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub rows: usize,
    pub tokens: usize,
    pub counts: RowCounts,
}

impl Extent {
    /// Words that the table takes; `None` where that is beyond counting (a damaged file).
    pub(super) fn words(&self) -> Option<usize> {
        self.rows.checked_mul(2)?.checked_add(self.tokens.checked_mul(2)?)
    }
}

/// Words in memory or in a file.
pub(super) trait Words: Send + Sync {
    fn as_slice(&self) -> &[u32];
}

impl Words for Vec<u32> {
    fn as_slice(&self) -> &[u32] {
        self
    }
}

/// One table. Cheap to clone.
#[derive(Clone)]
pub(super) struct TokenTable {
    words: Arc<dyn Words>,
    /// Where the table begins.
    first: usize,
    extent: Extent,
}

impl TokenTable {
    /// The table of `extent` that begins at word `first`; `None` where the words do not hold one.
    pub(super) fn new(words: Arc<dyn Words>, first: usize, extent: Extent) -> Option<Self> {
        let end = first.checked_add(extent.words()?)?;
        if end > words.as_slice().len() {
            return None;
        }
        let table = Self { words, first, extent };
        let tokens: u64 = table.rows().map(|(length, _)| length as u64).sum();
        (tokens == extent.tokens as u64).then_some(table)
    }

    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// Length and kind of each row, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, RowKind)> + '_ {
        let words = &self.words.as_slice()[self.first..self.first + 2 * self.extent.rows];
        words.chunks_exact(2).map(|pair| {
            let kind = if pair[1] == 1 { RowKind::Running } else { RowKind::Whole };
            (pair[0] as usize, kind)
        })
    }

    /// Token ids of a range of the table.
    pub(super) fn ids(&self, range: Range<usize>) -> &[u32] {
        let start = self.first + 2 * self.extent.rows;
        &self.words.as_slice()[start + range.start..start + range.end]
    }

    /// Labels of a range of the table.
    pub(super) fn labels(&self, range: Range<usize>) -> &[u32] {
        let start = self.first + 2 * self.extent.rows + self.extent.tokens;
        &self.words.as_slice()[start + range.start..start + range.end]
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenTable")
            .field("extent", &self.extent)
            .finish_non_exhaustive()
    }
}

/// The training and the held-out table.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub train: TokenTable,
    pub held_out: TokenTable,
}

impl Tables {
    /// Puts two tables into memory.
    pub(super) fn in_memory(train: &TableBuilder, held_out: &TableBuilder) -> Option<Self> {
        let words: Vec<u32> = [train.parts(), held_out.parts()].concat().concat();
        Self::new(Arc::new(words), train.extent(), held_out.extent())
    }

    /// The two tables that follow one another in `words`.
    pub(super) fn new(words: Arc<dyn Words>, train: Extent, held_out: Extent) -> Option<Self> {
        let second = train.words()?;
        Some(Self {
            train: TokenTable::new(Arc::clone(&words), 0, train)?,
            held_out: TokenTable::new(words, second, held_out)?,
        })
    }
}
