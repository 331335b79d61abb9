//! Documents: tokenised rows, cut to the sequence length.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Document;
use super::tokens::{NO_TARGET, RowKind, TokenTable};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// The documents of one set, none longer than the sequence length and each with something to learn. Cheap to clone
/// in tokens: these stay where they are, in memory or in the mapped cache file.
#[derive(Clone, Debug)]
pub struct DocumentSet {
    table: TokenTable,
    spans: Vec<Span>,
    /// Longest stretch of a document, in tokens, that is scored at once.
    window: usize,
    statistics: Statistics,
}

/// What is known of a set of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Rows read from the files.
    pub rows: u64,
    /// Rows without text, completion or answer.
    pub empty_rows: u64,
    /// Rows none of whose targets lies within the sequence length.
    pub dropped_rows: u64,
    /// Rows whose end was cut away.
    pub cut_rows: u64,
    /// Tokens that were cut away with them.
    pub cut_tokens: u64,
    pub documents: u64,
    pub tokens: u64,
    /// Tokens that count in the loss.
    pub target_tokens: u64,
    /// Tokens of the longest document.
    pub longest: u64,
}

/// Where a document lies in the table.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    tokens: u32,
    targets: u32,
}

/// One document of a set, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentView<'a> {
    pub input_ids: &'a [u32],
    labels: &'a [u32],
}

impl DocumentView<'_> {
    /// The label of each token, not shifted: the token itself where it is a target, else [`IGNORE`].
    pub fn labels(&self) -> impl Iterator<Item = i64> + '_ {
        self.labels.iter().map(|label| as_label(*label))
    }

    /// A copy that owns its tokens.
    pub fn to_document(&self) -> Document {
        Document {
            input_ids: self.input_ids.to_vec(),
            labels: self.labels().collect(),
        }
    }
}

/// A stretch of a document that is scored at once, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowView<'a> {
    pub input_ids: &'a [u32],
    labels: &'a [u32],
    /// The first token that counts; those before it are context.
    first_scored: usize,
}

impl WindowView<'_> {
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

/// A document needs a token to predict and one to predict it from.
pub(super) const SHORTEST: usize = 2;

impl DocumentSet {
    /// Cuts the rows of a table to `sequence_length` tokens: running text is split, other rows lose their end.
    pub(super) fn cut(table: &TokenTable, sequence_length: usize) -> Self {
        let counts = table.extent().counts;
        let mut set = Self {
            table: table.clone(),
            spans: Vec::with_capacity(table.extent().rows),
            window: sequence_length,
            statistics: Statistics {
                rows: counts.read,
                empty_rows: counts.empty,
                ..Statistics::default()
            },
        };
        let mut start = 0;
        for (length, kind) in table.rows() {
            let kept = set.spans.len();
            match kind {
                RowKind::Whole => set.push(start, length.min(sequence_length)),
                RowKind::Running => {
                    for offset in (0..length).step_by(sequence_length) {
                        set.push(start + offset, (length - offset).min(sequence_length));
                    }
                }
            }
            if set.spans.len() == kept {
                set.statistics.dropped_rows += 1;
            } else if kind == RowKind::Whole && length > sequence_length {
                set.statistics.cut_rows += 1;
                set.statistics.cut_tokens += (length - sequence_length) as u64;
            }
            start += length;
        }
        set
    }

    /// The same documents, scored in windows of at most `window` tokens (at least 2).
    pub(super) fn scored_in(mut self, window: usize) -> Self {
        self.window = window;
        self
    }

    /// Adds a document if it has a target: a token after the first that counts.
    fn push(&mut self, start: usize, tokens: usize) {
        let labels = self.table.labels(start..start + tokens);
        let targets = labels.iter().skip(1).filter(|label| **label != NO_TARGET).count();
        if targets == 0 {
            return;
        }
        self.spans.push(Span {
            start,
            tokens: tokens as u32,
            targets: targets as u32,
        });
        let statistics = &mut self.statistics;
        statistics.documents += 1;
        statistics.tokens += tokens as u64;
        statistics.target_tokens += targets as u64;
        statistics.longest = statistics.longest.max(tokens as u64);
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
        self.spans[index].tokens as usize
    }

    /// Tokens of document `index` that count in the loss.
    pub fn target_tokens(&self, index: usize) -> usize {
        self.spans[index].targets as usize
    }

    /// Document `index`.
    pub fn document(&self, index: usize) -> DocumentView<'_> {
        let span = self.spans[index];
        let range = span.start..span.start + span.tokens as usize;
        DocumentView {
            input_ids: self.table.ids(range.clone()),
            labels: self.table.labels(range),
        }
    }

    /// The windows in which document `index` is scored: together they hold each of its targets once. The document itself
    /// where it is not longer than a window.
    ///
    /// Windows begin half a window apart, and each scores what the one before it did not reach, so that a target has at
    /// least half a window of context, or all there is. Windows that lie end to end would cost half as much, but give
    /// the tokens at their beginning next to no context; a stride of one token would cost as many passes as tokens.
    pub fn windows(&self, index: usize) -> impl Iterator<Item = WindowView<'_>> {
        let span = self.spans[index];
        let (tokens, window) = (span.tokens as usize, self.window.max(SHORTEST));
        let mut scored = 1;
        std::iter::from_fn(move || {
            if scored >= tokens {
                return None;
            }
            let start = if scored == 1 { 0 } else { scored - window.div_ceil(2) };
            let end = (start + window).min(tokens);
            let first_scored = std::mem::replace(&mut scored, end) - start;
            let range = span.start + start..span.start + end;
            Some(WindowView {
                input_ids: self.table.ids(range.clone()),
                labels: self.table.labels(range),
                first_scored,
            })
        })
        .filter(|window| window.target_tokens() > 0)
    }

    /// Adds every document, its tokens and its labels, to `hash`.
    pub(super) fn hash_into(&self, hash: &mut Sha256) {
        hash.update((self.len() as u64).to_le_bytes());
        let mut bytes = Vec::new();
        for span in &self.spans {
            let range = span.start..span.start + span.tokens as usize;
            let (ids, labels) = (self.table.ids(range.clone()), self.table.labels(range));
            bytes.clear();
            bytes.extend_from_slice(&span.tokens.to_le_bytes());
            bytes.extend(ids.iter().chain(labels).flat_map(|word| word.to_le_bytes()));
            hash.update(&bytes);
        }
    }

    /// The highest token id of all documents, targets included; `None` where there are no tokens.
    pub(super) fn highest_token(&self) -> Option<u32> {
        let of_span = |span: &Span| {
            let range = span.start..span.start + span.tokens as usize;
            let targets = self.table.labels(range.clone()).iter();
            let targets = targets.filter(|label| **label != NO_TARGET);
            self.table.ids(range).iter().chain(targets).max().copied()
        };
        self.spans.iter().filter_map(of_span).max()
    }

    /// What is known of the set.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }
}

fn as_label(label: u32) -> i64 {
    if label == NO_TARGET { IGNORE } else { i64::from(label) }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::{TableBuilder, Tables, TokenRow};
    use super::*;

    fn set(rows: &[(usize, usize, RowKind)], sequence_length: usize) -> DocumentSet {
        let mut builder = TableBuilder::default();
        for (tokens, prompt, kind) in rows {
            let ids: Vec<u32> = (0..*tokens as u32).collect();
            let labels = ids
                .iter()
                .map(|id| if (*id as usize) < *prompt { NO_TARGET } else { *id });
            builder.push(Some(TokenRow {
                labels: labels.collect(),
                ids: ids.clone(),
                kind: *kind,
            }));
        }
        builder.push(None);
        let tables = Tables::in_memory(&builder, &TableBuilder::default()).unwrap();
        DocumentSet::cut(&tables.train, sequence_length)
    }

    #[test]
    fn rows_are_cut_and_those_without_targets_dropped() {
        let set = set(
            &[(3, 1, RowKind::Whole), (9, 2, RowKind::Whole), (9, 4, RowKind::Whole)],
            4,
        );
        let expected = Statistics {
            rows: 4,
            empty_rows: 1,
            dropped_rows: 1,
            cut_rows: 1,
            cut_tokens: 5,
            documents: 2,
            tokens: 7,
            target_tokens: 4,
            longest: 4,
        };
        assert_eq!(set.statistics(), expected);
        assert_eq!(set.document(1).input_ids, [0, 1, 2, 3]);
        assert_eq!(set.document(1).labels().collect::<Vec<_>>(), [IGNORE, IGNORE, 2, 3]);
    }

    #[test]
    fn running_text_is_split_without_loss() {
        let set = set(&[(10, 0, RowKind::Running), (9, 0, RowKind::Running)], 4);
        let lengths: Vec<usize> = (0..set.len()).map(|index| set.tokens(index)).collect();
        // The last token of the second row has nothing before it in its document and teaches nothing.
        assert_eq!(lengths, [4, 4, 2, 4, 4]);
        assert_eq!(set.document(2).input_ids, [8, 9]);
        assert_eq!(set.statistics().dropped_rows, 0);
    }
}
