//! Documents: tokenised rows, cut to the sequence length.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Document;
use super::length_limit::LengthLimit;
use super::mixture::turns;
use super::tokens::{NO_TARGET, Row, RowKind, TokenTable};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// The documents of one set, none longer than the sequence length and each with something to learn. Cheap to clone
/// in tokens: these stay where they are, in memory or in the mapped cache file, and are read document by document.
#[derive(Clone, Debug)]
pub struct DocumentSet {
    /// Table of the set, or those of the sets of a mixture.
    tables: Vec<SetTable>,
    spans: Vec<Span>,
    /// Most tokens of a document.
    length: usize,
    /// Longest stretch of a document, in tokens, that is scored at once.
    window: usize,
    statistics: Statistics,
    /// Weights of the tables, where sets are mixed.
    weights: Option<Arc<[f64]>>,
}

/// A table, and where its documents end among those of all.
#[derive(Clone, Debug)]
struct SetTable {
    table: TokenTable,
    end: usize,
}

/// Counts of a set of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Rows read from the files.
    pub rows: u64,
    /// Rows without text, completion or answer.
    pub empty_rows: u64,
    /// Rows without any target, whatever the sequence length.
    pub untargeted_rows: u64,
    /// Rows none of whose targets lies within the sequence length.
    pub dropped_rows: u64,
    /// Rows that were left out as they are longer than the sequence length.
    pub too_long_rows: u64,
    /// Rows whose end was cut away.
    pub cut_rows: u64,
    /// Tokens that were cut away with them.
    pub cut_tokens: u64,
    pub documents: u64,
    pub tokens: u64,
    /// Tokens that count in the loss.
    pub target_tokens: u64,
    /// Tokens of the longest document; of pairs, of the longest sequence.
    pub longest: u64,
}

impl Statistics {
    /// Rows of which nothing is trained on, for whatever reason.
    pub fn left_out_rows(&self) -> u64 {
        self.empty_rows + self.untargeted_rows + self.dropped_rows + self.too_long_rows
    }

    /// Adds up the statistics of two sets.
    fn with(self, other: &Self) -> Self {
        let Self {
            rows,
            empty_rows,
            untargeted_rows,
            dropped_rows,
            too_long_rows,
            cut_rows,
            cut_tokens,
            documents,
            tokens,
            target_tokens,
            longest,
        } = self;
        Self {
            rows: rows + other.rows,
            empty_rows: empty_rows + other.empty_rows,
            untargeted_rows: untargeted_rows + other.untargeted_rows,
            dropped_rows: dropped_rows + other.dropped_rows,
            too_long_rows: too_long_rows + other.too_long_rows,
            cut_rows: cut_rows + other.cut_rows,
            cut_tokens: cut_tokens + other.cut_tokens,
            documents: documents + other.documents,
            tokens: tokens + other.tokens,
            target_tokens: target_tokens + other.target_tokens,
            longest: longest.max(other.longest),
        }
    }
}

/// Location of a document in its table. There is one for each document, so it holds nothing that the table tells.
#[derive(Clone, Copy, Debug)]
struct Span {
    row: u32,
    /// Tokens of the row before it.
    offset: u32,
}

/// Row of a table: the table's number among those of a mixture, and the row's number there, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableRow {
    pub set: usize,
    pub row: usize,
}

/// One document of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentView {
    pub input_ids: Vec<u32>,
    labels: Vec<u32>,
}

impl DocumentView {
    /// The label of each token, not shifted: the token itself where it is a target, else [`IGNORE`].
    pub fn labels(&self) -> impl Iterator<Item = i64> + '_ {
        self.labels.iter().map(|label| as_label(*label))
    }

    /// Copies the view into a document.
    pub fn to_document(&self) -> Document {
        Document {
            input_ids: self.input_ids.clone(),
            labels: self.labels().collect(),
        }
    }
}

/// A stretch of a document that is scored at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowView {
    pub input_ids: Vec<u32>,
    labels: Vec<u32>,
    /// Index of the first token that counts; those before it are context.
    first_scored: usize,
}

impl WindowView {
    /// The label of each token, not shifted: the token itself where it is a target of this window, else [`IGNORE`].
    pub fn labels(&self) -> impl Iterator<Item = i64> + '_ {
        let of_token = |(at, label): (usize, &u32)| match at < self.first_scored {
            true => IGNORE,
            false => as_label(*label),
        };
        self.labels.iter().enumerate().map(of_token)
    }

    /// Tokens that count in the loss.
    pub fn target_tokens(&self) -> usize {
        let labels = self.labels[self.first_scored..].iter();
        labels.filter(|label| **label != NO_TARGET).count()
    }
}

/// Documents after which a reader of all gives their memory back to the system.
const RELEASE_AFTER: usize = 1 << 14;

/// A document needs a token to predict and one to predict it from.
pub(super) const SHORTEST: usize = 2;

impl DocumentSet {
    /// Brings the rows of a table to a length: running text is split, other rows lose their end or are left out.
    pub(super) fn cut(table: &TokenTable, limit: LengthLimit) -> Self {
        let sequence_length = limit.tokens;
        let counts = table.extent().counts;
        let mut set = Self {
            tables: Vec::new(),
            weights: None,
            spans: Vec::with_capacity(table.extent().rows as usize),
            length: sequence_length,
            window: sequence_length,
            statistics: Statistics {
                rows: counts.read,
                empty_rows: counts.empty,
                ..Statistics::default()
            },
        };
        for (index, row) in table.rows().enumerate() {
            let kept = set.spans.len();
            let sequences = stretches(table, &row, 0, usize::MAX);
            let longest = sequences.into_iter().map(|sequence| sequence.len()).max();
            let is_too_long = limit.leaves_out(row.kind, longest.unwrap_or_default());
            match row.kind {
                RowKind::Whole | RowKind::Pair if is_too_long => {}
                RowKind::Whole | RowKind::Pair => set.push(table, index, &row, 0),
                RowKind::Running => {
                    let offsets = (0..row.tokens).step_by(sequence_length);
                    offsets.for_each(|offset| set.push(table, index, &row, offset));
                }
            }
            if set.spans.len() == kept {
                match table.count_targets(&row, 1..row.tokens) {
                    0 => set.statistics.untargeted_rows += 1,
                    _ if is_too_long => set.statistics.too_long_rows += 1,
                    _ => set.statistics.dropped_rows += 1,
                }
            } else if row.kind != RowKind::Running {
                let kept = stretches(table, &row, 0, sequence_length);
                let cut = row.tokens - kept.iter().map(ExactSizeIterator::len).sum::<usize>();
                set.statistics.cut_rows += u64::from(cut > 0);
                set.statistics.cut_tokens += cut as u64;
            }
        }
        let (table, end) = (table.clone(), set.spans.len());
        set.tables.push(SetTable { table, end });
        set
    }

    /// The documents of several sets, all cut to the same length, with the weights that they are mixed by when they are
    /// trained on.
    pub(super) fn mixed(sets: Vec<Self>, weights: Option<Arc<[f64]>>) -> Option<Self> {
        let mut sets = sets.into_iter();
        let mut all = sets.next()?;
        for set in sets {
            let before = all.spans.len();
            all.spans.extend(set.spans);
            let moved = set.tables.into_iter().map(|SetTable { table, end }| SetTable {
                table,
                end: before + end,
            });
            all.tables.extend(moved);
            all.statistics = all.statistics.with(&set.statistics);
        }
        all.weights = weights;
        Some(all)
    }

    /// The documents of each set of a mixture; all of them where no sets are mixed.
    pub fn set_ranges(&self) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.tables.iter().map(|set| set.end));
        starts.zip(&self.tables).map(|(start, set)| start..set.end).collect()
    }

    /// All documents, in file order. Of a mixture the sets take turns, each as often as it has documents, so that the first
    /// ones are of all sets.
    pub(super) fn in_turns(&self) -> impl Iterator<Item = usize> + use<> {
        let sets = self.set_ranges();
        let turns = (sets.len() > 1).then(|| turns(&sets.iter().map(ExactSizeIterator::len).collect::<Vec<_>>()));
        (0..self.len()).map(move |position| turns.as_ref().map_or(position, |turns| turns[position] as usize))
    }

    /// The weights of the sets, where they are mixed.
    pub(super) fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }

    /// Returns the set with its documents scored in windows of at most `window` tokens (at least 2).
    pub(super) fn scored_in(mut self, window: usize) -> Self {
        self.window = window;
        self
    }

    /// Adds the document that begins at `offset` of a row, if it has a target: a token after the first that counts. Of a pair each
    /// sequence has one.
    fn push(&mut self, table: &TokenTable, index: usize, row: &Row, offset: usize) {
        let stretches = stretches(table, row, offset, self.length);
        let [first, second] = stretches.each_ref().map(|stretch| targets_of(table, row, stretch));
        if first == 0 || second == 0 && row.kind == RowKind::Pair {
            return;
        }
        let (tokens, targets) = (stretches.each_ref().map(ExactSizeIterator::len), first + second);
        self.spans.push(Span {
            row: index as u32,
            offset: offset as u32,
        });
        let statistics = &mut self.statistics;
        statistics.documents += 1;
        statistics.tokens += tokens.iter().sum::<usize>() as u64;
        statistics.target_tokens += targets as u64;
        statistics.longest = statistics.longest.max(tokens[0].max(tokens[1]) as u64);
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Tokens of document `index`.
    pub fn tokens(&self, index: usize) -> usize {
        self.located(index).stretches.iter().map(ExactSizeIterator::len).sum()
    }

    /// Tokens of document `index` that count in the loss.
    pub fn target_tokens(&self, index: usize) -> usize {
        self.sequences(index).map(|(_, targets)| targets).sum()
    }

    /// (tokens, target tokens) of the sequences of document `index`: both of a pair, else the document's own.
    pub fn sequences(&self, index: usize) -> impl Iterator<Item = (usize, usize)> {
        let DocumentPlace { table, row, stretches } = self.located(index);
        let of_stretch = move |stretch: Range<usize>| (stretch.len(), targets_of(table, &row, &stretch));
        let there = stretches.into_iter().filter(|stretch| !stretch.is_empty());
        there.map(of_stretch)
    }

    /// Whether document `index` is a row of its own, with nothing cut away.
    pub(super) fn is_whole_row(&self, index: usize) -> bool {
        let DocumentPlace { row, stretches, .. } = self.located(index);
        let [stretch, _] = stretches;
        row.kind == RowKind::Whole && stretch == (0..row.tokens)
    }

    /// Document `index`; of a pair both sequences, one behind the other.
    pub fn document(&self, index: usize) -> DocumentView {
        let DocumentPlace { table, row, stretches } = self.located(index);
        let [stretch, second] = stretches;
        let mut view = DocumentView {
            input_ids: table.ids(&row, stretch.clone()),
            labels: table.labels(&row, stretch),
        };
        if !second.is_empty() {
            view.input_ids.extend(table.ids(&row, second.clone()));
            view.labels.extend(table.labels(&row, second));
        }
        view
    }

    /// Row of a table that document `index` was cut from.
    pub(super) fn table_row(&self, index: usize) -> TableRow {
        let set = self.tables.partition_point(|set| set.end <= index);
        let row = self.spans[index].row as usize;
        TableRow { set, row }
    }

    /// Whether a row of the table of this number was left out, so that later ones have another number than in their files.
    pub(super) fn has_left_out(&self, set: usize) -> bool {
        self.tables
            .get(set)
            .is_none_or(|set| set.table.extent().counts.empty > 0)
    }

    fn located(&self, index: usize) -> DocumentPlace<'_> {
        let span = self.spans[index];
        let table = &self.tables[self.tables.partition_point(|set| set.end <= index)].table;
        let row = table.row(span.row as usize);
        let stretches = stretches(table, &row, span.offset as usize, self.length);
        DocumentPlace { table, row, stretches }
    }

    /// The windows in which document `index` is scored: together they hold each of its targets once. The document itself
    /// where it is not longer than a window.
    ///
    /// Windows begin half a window apart, and each scores what the one before it did not reach, so that a target has at
    /// least half a window of context, or all there is. Windows that lie end to end would cost half as much, but give
    /// the tokens at their beginning next to no context; a stride of one token would cost as many passes as tokens.
    ///
    /// What trains on pairs scores them whole, and not here.
    pub fn windows(&self, index: usize) -> impl Iterator<Item = WindowView> + '_ {
        let DocumentPlace { table, row, stretches } = self.located(index);
        let [document, _] = stretches;
        let (tokens, window) = (document.len(), self.window.max(SHORTEST));
        let mut scored = 1;
        std::iter::from_fn(move || {
            if scored >= tokens {
                return None;
            }
            let start = if scored == 1 { 0 } else { scored - window.div_ceil(2) };
            let end = (start + window).min(tokens);
            let first_scored = std::mem::replace(&mut scored, end) - start;
            let range = document.start + start..document.start + end;
            Some(WindowView {
                input_ids: table.ids(&row, range.clone()),
                labels: table.labels(&row, range),
                first_scored,
            })
        })
        .filter(|window| window.target_tokens() > 0)
    }

    /// Adds every document, its tokens and its labels, to `hash`; of a mixture also what decides whose turn it is.
    pub(super) fn hash_into(&self, hash: &mut Sha256) {
        for (set, weight) in self.tables.iter().zip(self.weights().unwrap_or_default()) {
            hash.update((set.end as u64).to_le_bytes());
            hash.update(weight.to_bits().to_le_bytes());
        }
        hash.update((self.len() as u64).to_le_bytes());
        let mut bytes = Vec::new();
        self.each(|document| {
            bytes.clear();
            bytes.extend_from_slice(&(document.input_ids.len() as u32).to_le_bytes());
            let words = document.input_ids.iter().chain(&document.labels);
            bytes.extend(words.flat_map(|word| word.to_le_bytes()));
            hash.update(&bytes);
        });
    }

    /// The highest token id of all documents, targets included; 0 where there are no tokens.
    pub(super) fn highest_token(&self) -> u32 {
        let mut highest = 0;
        self.each(|document| {
            let targets = document.labels.iter().filter(|label| **label != NO_TARGET);
            highest = document.input_ids.iter().chain(targets).fold(highest, |a, b| a.max(*b));
        });
        highest
    }

    /// Whether all token ids are below `vocabulary`, those of what was cut away included. Looks at no row.
    pub(super) fn is_surely_below(&self, vocabulary: usize) -> bool {
        let is_below = |set: &SetTable| set.table.extent().highest < vocabulary as u64;
        self.tables.iter().all(is_below)
    }

    /// Looks at all documents, in order. Their tokens do not stay in memory.
    fn each(&self, mut look: impl FnMut(&DocumentView)) {
        for index in 0..self.len() {
            look(&self.document(index));
            let is_last = self.tables.iter().any(|set| set.end == index + 1);
            if index % RELEASE_AFTER == RELEASE_AFTER - 1 || is_last {
                let DocumentPlace { table, row, .. } = self.located(index);
                table.release_words(&row);
            }
        }
    }

    /// Counts of the set.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }
}

/// Place of a document: its row in a table, and its tokens there.
struct DocumentPlace<'a> {
    table: &'a TokenTable,
    row: Row,
    stretches: Stretches,
}

/// Tokens of a row that a document has: one stretch and an empty one, or a stretch of each sequence of a pair.
type Stretches = [Range<usize>; 2];

/// The stretches of a row from `offset` on, each of at most `length` tokens. Pairs begin at their beginning.
fn stretches(table: &TokenTable, row: &Row, offset: usize, length: usize) -> Stretches {
    let cut = |range: Range<usize>| range.start..range.end.min(range.start.saturating_add(length));
    match row.kind {
        RowKind::Whole | RowKind::Running => [cut(offset..row.tokens), 0..0],
        RowKind::Pair => table.sequences(row).map(cut),
    }
}

/// Targets of a stretch: its first token is what the others follow.
fn targets_of(table: &TokenTable, row: &Row, stretch: &Range<usize>) -> usize {
    table.count_targets(row, stretch.start + 1..stretch.end)
}

fn as_label(label: u32) -> i64 {
    if label == NO_TARGET { IGNORE } else { i64::from(label) }
}

#[cfg(test)]
mod tests;
