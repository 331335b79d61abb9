//! How long the documents of a micro-batch are, as far as cost depends on it.

use super::padding::{mean_longest, mean_longest_of_similar};
use crate::recipe::BatchSettings;

/// Documents of one length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Documents {
    pub tokens: usize,
    /// How many; a fraction where it is a mean over micro-batches.
    pub count: f64,
}

impl Documents {
    /// All `documents`, cut into chunks of `chunk` tokens and what is left over.
    pub fn cut(documents: &[Self], chunk: usize) -> Vec<Self> {
        let cut = |documents: &Self| {
            let Self { tokens, count } = *documents;
            let whole = Self {
                tokens: chunk,
                count: count * (tokens / chunk) as f64,
            };
            let rest = Self {
                tokens: tokens % chunk,
                count,
            };
            [whole, rest]
        };
        let parts = documents.iter().flat_map(cut);
        parts.filter(|part| part.tokens > 0 && part.count > 0.0).collect()
    }
}

/// One micro-batch: documents laid end to end.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamShape {
    /// Documents by length.
    pub documents: Vec<Documents>,
    /// Positions that count in the loss.
    pub targets: f64,
}

impl StreamShape {
    /// `rows` documents of `tokens` tokens each, every one of which but the first is a target.
    pub fn full(rows: usize, tokens: usize) -> Self {
        Self {
            documents: vec![Documents {
                tokens,
                count: rows as f64,
            }],
            targets: (rows * tokens.saturating_sub(1)) as f64,
        }
    }

    /// Micro-batches one behind the other.
    pub fn end_to_end(streams: &[&Self]) -> Self {
        let documents = streams.iter().flat_map(|stream| &stream.documents);
        Self {
            documents: documents.copied().collect(),
            targets: streams.iter().map(|stream| stream.targets).sum(),
        }
    }

    /// Tokens of the stream.
    pub fn tokens(&self) -> f64 {
        self.documents
            .iter()
            .map(|documents| documents.tokens as f64 * documents.count)
            .sum()
    }

    /// The documents, cut into chunks where there is a size of them.
    pub fn in_chunks(&self, chunk: Option<usize>) -> Vec<Documents> {
        let Some(chunk) = chunk.filter(|chunk| *chunk < self.longest()) else {
            return self.documents.clone();
        };
        Documents::cut(&self.documents, chunk)
    }

    /// Tokens of the longest document.
    pub fn longest(&self) -> usize {
        self.documents
            .iter()
            .map(|documents| documents.tokens)
            .max()
            .unwrap_or(0)
    }
}

/// Micro-batches that a recipe trains on.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The micro-batch that takes the most memory.
    pub longest: StreamShape,
    /// The mean micro-batch.
    pub mean: StreamShape,
    /// Rows of the data set, where it is known.
    pub rows: Option<usize>,
}

impl Workload {
    /// Rows that are all as long as may be: what is assumed where the data is not known.
    pub fn full(micro_batch: usize, sequence_length: usize) -> Self {
        let stream = StreamShape::full(micro_batch, sequence_length);
        Self {
            longest: stream.clone(),
            mean: stream,
            rows: None,
        }
    }
}

/// Rows of a data set, as far as cost depends on them.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLengths {
    /// (tokens, targets) of each row's documents, the longest rows first; no more than a micro-batch may have.
    longest: Vec<Vec<(usize, usize)>>,
    /// The mean row.
    mean: StreamShape,
    /// Tokens that stacks make the rows of a micro-batch as long as, of each row, the shortest first: those of all its documents, or of
    /// the longest one of a pair.
    lengths: Vec<usize>,
    /// Tokens of the mean row.
    mean_tokens: f64,
    /// Documents of a row that are rows of their own in a stack: both of a pair, else the row.
    sequences: usize,
    /// Whether these are all rows.
    is_whole: bool,
}

/// Lengths that the mean micro-batch is described by.
const LENGTHS: usize = 12;
/// Rows of the largest micro-batch.
const MOST_ROWS: usize = 1 << 16;
/// Most steps whose rows other stacks draw at a time and put into the order of their lengths (`get_length_grouped_indices` of
/// transformers).
const SORTED_STEPS: usize = 50;
/// Fewest such spans that all rows are cut into.
const LEAST_SPANS: usize = 4;

impl RowLengths {
    /// Rows from the (tokens, targets) of their documents, which lie end to end.
    pub fn new(rows: Vec<Vec<(usize, usize)>>) -> Self {
        Self::with_lengths(rows, 1, |row| row.iter().map(|(tokens, _)| tokens).sum())
    }

    /// Pairs from the (tokens, targets) of their sequences, which lie side by side.
    pub fn of_pairs(rows: Vec<Vec<(usize, usize)>>) -> Self {
        let longest = |row: &[(usize, usize)]| row.iter().map(|(tokens, _)| *tokens).max();
        Self::with_lengths(rows, 2, |row| longest(row).unwrap_or(0))
    }

    fn with_lengths(
        mut rows: Vec<Vec<(usize, usize)>>,
        sequences: usize,
        length: impl Fn(&[(usize, usize)]) -> usize,
    ) -> Self {
        rows.sort_by_key(|row| std::cmp::Reverse(length(row)));
        let lengths = rows.iter().rev().map(|row| length(row)).collect();
        let all: Vec<&(usize, usize)> = rows.iter().flatten().collect();
        let tokens: usize = all.iter().map(|(tokens, _)| *tokens).sum();
        let mean = stream(&all, 1.0 / rows.len().max(1) as f64, LENGTHS);
        let mean_tokens = tokens as f64 / rows.len().max(1) as f64;
        rows.truncate(MOST_ROWS);
        Self {
            longest: rows,
            mean,
            lengths,
            mean_tokens,
            sequences,
            is_whole: true,
        }
    }

    /// Takes the rows for a sample, of which the mean is known and the longest is not: it is one of `sequence_length` tokens.
    #[must_use]
    pub fn as_sample(self, sequence_length: usize) -> Self {
        let full = (sequence_length, sequence_length.saturating_sub(1));
        Self {
            longest: vec![vec![full; self.sequences]],
            is_whole: false,
            ..self
        }
    }

    /// Tokens of the mean row, and those that the mean micro-batch is padded to where other stacks put the micro-batches of `batch`
    /// together.
    pub fn mean_and_longest(&self, batch: &BatchSettings) -> (f64, f64) {
        let rows = self.lengths.len();
        let longest = if batch.group_by_length {
            let step = batch.global_batch().max(1);
            let steps = (rows / step.saturating_mul(LEAST_SPANS)).clamp(1, SORTED_STEPS);
            mean_longest_of_similar(&self.lengths, batch.micro_batch, step.saturating_mul(steps))
        } else {
            mean_longest(&self.lengths, batch.micro_batch)
        };
        (self.mean_tokens, longest)
    }

    /// The longest and the mean micro-batch of `micro_batch` rows; of all rows, where there are fewer.
    pub fn workload(&self, micro_batch: usize) -> Workload {
        let rows = match self.is_whole {
            true => micro_batch.min(self.lengths.len().max(1)),
            false => micro_batch,
        };
        let longest: Vec<&(usize, usize)> = self.longest.iter().cycle().take(rows).flatten().collect();
        let mut mean = self.mean.clone();
        mean.targets *= rows as f64;
        for documents in &mut mean.documents {
            documents.count *= rows as f64;
        }
        Workload {
            longest: stream(&longest, 1.0, usize::MAX),
            mean,
            rows: self.is_whole.then_some(self.lengths.len()),
        }
    }
}

/// The documents as a stream, each counted `share` times; at most `most` lengths are told apart.
fn stream(documents: &[&(usize, usize)], share: f64, most: usize) -> StreamShape {
    let mut lengths: Vec<usize> = documents.iter().map(|(tokens, _)| *tokens).collect();
    lengths.sort_unstable();
    let group = if most == usize::MAX {
        1
    } else {
        lengths.len().div_ceil(most).max(1)
    };
    let mean = |group: &[usize]| Documents {
        tokens: (group.iter().sum::<usize>() as f64 / group.len() as f64).round() as usize,
        count: group.len() as f64 * share,
    };
    let mut merged: Vec<Documents> = Vec::new();
    for next in lengths.chunks(group).map(mean) {
        match merged.last_mut() {
            Some(last) if last.tokens == next.tokens => last.count += next.count,
            _ => merged.push(next),
        }
    }
    StreamShape {
        documents: merged,
        targets: share * documents.iter().map(|(_, targets)| *targets).sum::<usize>() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_micro_batch_has_the_longest_rows_and_the_mean_has_the_mean_tokens() {
        let rows = RowLengths::new(vec![vec![(4, 3)], vec![(10, 2), (3, 1)], vec![(7, 6)]]);
        let workload = rows.workload(2);
        assert_eq!(workload.longest.tokens(), 20.0);
        assert_eq!((workload.longest.longest(), workload.longest.targets), (10, 9.0));
        assert!((workload.mean.tokens() - 16.0).abs() < 1e-9);
        assert!((workload.mean.targets - 8.0).abs() < 1e-9);
    }

    #[test]
    fn the_longest_row_of_a_sample_is_taken_for_a_full_one() {
        let rows = RowLengths::new(vec![vec![(4, 3)], vec![(6, 2)]]);
        let workload = rows.as_sample(16).workload(2);
        assert_eq!((workload.longest.tokens(), workload.mean.tokens()), (32.0, 10.0));
    }

    #[test]
    fn pairs_are_as_long_as_the_longer_sequence_and_have_the_tokens_of_both() {
        let pairs = RowLengths::of_pairs(vec![vec![(8, 2), (9, 3)], vec![(12, 4), (3, 1)]]);
        let one = BatchSettings {
            micro_batch: 1,
            ..BatchSettings::default()
        };
        assert_eq!(pairs.mean_and_longest(&one), (16.0, 10.5));
        let longest = pairs.workload(1).longest;
        assert_eq!((longest.longest(), longest.tokens()), (12, 15.0));
        let sample = pairs.as_sample(20).workload(1).longest;
        assert_eq!((sample.longest(), sample.tokens()), (20, 40.0));
    }

    #[test]
    fn rows_of_similar_length_meet_where_a_batch_says_so() {
        let rows = RowLengths::new((1..=200).map(|tokens| vec![(tokens, tokens - 1)]).collect());
        let longest = |group_by_length| {
            let batch = BatchSettings {
                group_by_length,
                ..BatchSettings::default()
            };
            rows.mean_and_longest(&batch)
        };
        let [(mean, apart), (same, together)] = [longest(false), longest(true)];
        assert_eq!((mean, same), (100.5, 100.5));
        assert!(together < 110.0 && apart > 150.0, "{together} {apart}");
    }

    #[test]
    fn data_with_fewer_rows_than_a_micro_batch_are_one() {
        let workload = RowLengths::new(vec![vec![(4, 3)]]).workload(3);
        assert_eq!((workload.longest.tokens(), workload.longest.targets), (4.0, 3.0));
        assert_eq!((workload.mean.tokens(), workload.mean.targets), (4.0, 3.0));
    }
}
