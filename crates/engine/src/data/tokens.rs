//! Tokenised rows, uncut: what the cache holds, whatever the sequence length.
//!
//! A table is three runs of bytes, in memory or mapped from the cache file, so that rows are read one by one and none has
//! to be held. A table of n rows is laid out as
//!
//! | part | entry | meaning |
//! |---|---|---|
//! | words | 2 or 4 bytes | token ids of all rows, end to end; behind those of a row with labels of its own, its labels |
//! | rows | 16 bytes | first word and [`RUNNING`], [`OWN_LABELS`], [`PAIRED`]; tokens; first run |
//! | runs | 8 bytes | tokens that are not targets, and targets behind them |
//!
//! Token ids take 2 bytes where the vocabulary allows it. A row without runs is learnt whole.

use std::ops::Range;
use std::sync::Arc;

use super::notes::Notes;

/// Label of a token that is not a target.
pub(super) const NO_TARGET: u32 = u32::MAX;

/// Set in a row's first word: it is running text.
pub(super) const RUNNING: u64 = 1 << 63;
/// Set in a row's first word: its targets are not its own tokens, and stand behind them.
pub(super) const OWN_LABELS: u64 = 1 << 62;
/// Set in a row's first word: it is the two sequences of a pair, end to end.
pub(super) const PAIRED: u64 = 1 << 61;
/// Bytes of a row's entry.
pub(super) const ROW_BYTES: usize = 16;
/// Bytes of a run's entry.
pub(super) const RUN_BYTES: usize = 8;
/// Entries after which a reader of all rows gives their memory back to the system.
const RELEASE_AFTER: usize = 1 << 17;

/// Treatment of a row that is longer than the sequence length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// A row whose end is cut away, or that is left out.
    Whole,
    /// Running text, which is split.
    Running,
    /// Two sequences, each of which loses its end, or that are left out together. Each has one stretch of targets, up to its end.
    Pair,
}

/// One tokenised row. `labels` is as long as `ids`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenRow {
    pub ids: Vec<u32>,
    pub labels: Vec<u32>,
    pub kind: RowKind,
}

impl TokenRow {
    /// Sequences of the row: both of a pair, else the row.
    pub(super) fn sequences(&self) -> Vec<Range<usize>> {
        let all = self.ids.len();
        match self.kind {
            RowKind::Whole | RowKind::Running => std::iter::once(0..all).collect(),
            RowKind::Pair => {
                let is_target = |label: &&u32| **label != NO_TARGET;
                let others = self.labels.iter().take_while(|label| !is_target(label)).count();
                let targets = self.labels[others..].iter().take_while(is_target).count();
                let first = others + targets;
                vec![0..first, first..all]
            }
        }
    }
}

/// How many rows went in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCounts {
    /// Rows read from the files.
    pub read: u64,
    /// Rows of these without anything to learn from.
    pub empty: u64,
}

/// Bytes of a token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Two,
    Four,
}

impl Width {
    /// The width for ids below `vocabulary`.
    pub(super) fn of(vocabulary: u32) -> Self {
        match vocabulary <= 1 << 16 {
            true => Self::Two,
            false => Self::Four,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }
}

/// Size of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub rows: u64,
    pub runs: u64,
    /// Token ids, and labels that stand behind them.
    pub words: u64,
    /// Highest token id, labels included.
    pub highest: u64,
    pub counts: RowCounts,
}

/// Bytes in memory or in a file.
pub(super) trait Bytes: Send + Sync {
    fn as_slice(&self) -> &[u8];

    /// Says that the bytes of a range are not needed soon: those of a file need not stay in memory.
    fn release(&self, _range: Range<usize>) {}
}

impl Bytes for Vec<u8> {
    fn as_slice(&self) -> &[u8] {
        self
    }
}

/// One table. Cheap to clone.
#[derive(Clone)]
pub(super) struct TokenTable {
    bytes: Arc<dyn Bytes>,
    width: Width,
    extent: Extent,
    /// Positions where words, rows and runs begin.
    first: [usize; 3],
}

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Index of the row's first word.
    start: usize,
    pub tokens: usize,
    pub kind: RowKind,
    has_labels: bool,
    runs: Range<usize>,
}

impl TokenTable {
    /// The table of `extent` whose parts begin at `first`; `None` where the bytes do not hold one.
    pub(super) fn new(bytes: Arc<dyn Bytes>, width: Width, extent: Extent, first: [usize; 3]) -> Option<Self> {
        let lengths = part_bytes(width, &extent)?;
        let size = bytes.as_slice().len();
        let fits = |(first, length): (&usize, usize)| first.checked_add(length).is_some_and(|end| end <= size);
        first.iter().zip(lengths).all(fits).then_some(Self {
            bytes,
            width,
            extent,
            first,
        })
    }

    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// Whether each row's words and runs are those behind the row before it, so that no reading leads elsewhere.
    pub(super) fn is_sound(&self) -> bool {
        let (mut words, mut runs) = (0, 0);
        for row in self.rows() {
            let length = if row.has_labels { 2 * row.tokens } else { row.tokens };
            if row.start != words || row.runs.start != runs || row.runs.end < runs {
                return false;
            }
            (words, runs) = (words.saturating_add(length), row.runs.end);
        }
        (words as u64, runs as u64) == (self.extent.words, self.extent.runs)
    }

    /// Row `index`.
    pub(super) fn row(&self, index: usize) -> Row {
        let entry = self.entry(index);
        let word = u64::from_ne_bytes(array(&entry[..8]));
        let run = |entry: &[u8]| u32::from_ne_bytes(array(&entry[12..])) as usize;
        let next = match index + 1 < self.extent.rows as usize {
            true => run(self.entry(index + 1)),
            false => self.extent.runs as usize,
        };
        Row {
            start: (word & !(RUNNING | OWN_LABELS | PAIRED)) as usize,
            tokens: u32::from_ne_bytes(array(&entry[8..12])) as usize,
            kind: match (word & RUNNING, word & PAIRED) {
                (0, 0) => RowKind::Whole,
                (0, _) => RowKind::Pair,
                _ => RowKind::Running,
            },
            has_labels: word & OWN_LABELS != 0,
            runs: run(entry)..next,
        }
    }

    /// All rows, in order. Their entries do not stay in memory.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        (0..self.extent.rows as usize).map(|index| {
            let row = self.row(index);
            if index % RELEASE_AFTER == RELEASE_AFTER - 1 || index + 1 == self.extent.rows as usize {
                let first = self.first[1];
                self.bytes.release(first..first + (index + 1) * ROW_BYTES);
                let first = self.first[2];
                self.bytes.release(first..first + row.runs.start * RUN_BYTES);
            }
            row
        })
    }

    /// Token ids of a range of a row.
    pub(super) fn ids(&self, row: &Row, range: Range<usize>) -> Vec<u32> {
        self.words(row.start + range.start..row.start + range.end)
    }

    /// Labels of a range of a row: the target token, or [`NO_TARGET`].
    pub(super) fn labels(&self, row: &Row, range: Range<usize>) -> Vec<u32> {
        let first = row.start + if row.has_labels { row.tokens } else { 0 };
        let mut labels = self.words(first + range.start..first + range.end);
        let mut at = 0;
        for targets in self.targets(row) {
            let end = targets.start.clamp(range.start, range.end) - range.start;
            labels[at.min(end)..end].fill(NO_TARGET);
            at = targets.end.clamp(range.start, range.end) - range.start;
        }
        labels[at..].fill(NO_TARGET);
        labels
    }

    /// The sequences of a pair's row.
    pub(super) fn sequences(&self, row: &Row) -> [Range<usize>; 2] {
        let first = self
            .targets(row)
            .next()
            .map_or(row.tokens, |targets| targets.end.min(row.tokens));
        [0..first, first..row.tokens]
    }

    /// Targets in a range of a row.
    pub(super) fn count_targets(&self, row: &Row, range: Range<usize>) -> usize {
        let within = |targets: Range<usize>| {
            targets
                .end
                .min(range.end)
                .saturating_sub(targets.start.max(range.start))
        };
        self.targets(row).map(within).sum()
    }

    /// Gives the memory of the words back to the system, as far as it is a file's.
    pub(super) fn release_words(&self, upto: &Row) {
        let first = self.first[0];
        self.bytes.release(first..first + upto.start * self.width.bytes());
    }

    /// The stretches of a row that are targets.
    fn targets(&self, row: &Row) -> impl Iterator<Item = Range<usize>> + '_ {
        let whole = row.runs.is_empty().then_some(0..row.tokens);
        let mut at = 0;
        let runs = row.runs.clone().map(move |index| {
            let first = self.first[2] + index * RUN_BYTES;
            let entry = &self.bytes.as_slice()[first..first + RUN_BYTES];
            let start = at + u32::from_ne_bytes(array(&entry[..4])) as usize;
            at = start + u32::from_ne_bytes(array(&entry[4..])) as usize;
            start..at
        });
        whole.into_iter().chain(runs)
    }

    fn entry(&self, index: usize) -> &[u8] {
        let first = self.first[1] + index * ROW_BYTES;
        &self.bytes.as_slice()[first..first + ROW_BYTES]
    }

    fn words(&self, range: Range<usize>) -> Vec<u32> {
        let width = self.width.bytes();
        let bytes = &self.bytes.as_slice()[self.first[0] + range.start * width..self.first[0] + range.end * width];
        match self.width {
            Width::Two => {
                let words = bytes.chunks_exact(2);
                words.map(|word| u32::from(u16::from_ne_bytes(array(word)))).collect()
            }
            Width::Four => bytes
                .chunks_exact(4)
                .map(|word| u32::from_ne_bytes(array(word)))
                .collect(),
        }
    }
}

/// Bytes of a table's words, rows and runs; `None` where that is beyond counting (a damaged file).
pub(super) fn part_bytes(width: Width, extent: &Extent) -> Option<[usize; 3]> {
    let bytes = |count: u64, each: usize| usize::try_from(count).ok()?.checked_mul(each);
    Some([
        bytes(extent.words, width.bytes())?,
        bytes(extent.rows, ROW_BYTES)?,
        bytes(extent.runs, RUN_BYTES)?,
    ])
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice was cut to this length")
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
    pub notes: Notes,
}
