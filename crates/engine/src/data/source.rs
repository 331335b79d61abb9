//! Which rows make up which step.
//!
//! The rows of an epoch are put into an order that depends on the seed and the epoch alone, and epochs follow one
//! another without a gap: with n rows and a global batch of g, step k takes places k g to (k+1) g - 1 of that endless
//! sequence. So the last rows of an epoch share a step with the first of the next, and data with fewer rows than a
//! global batch is repeated within a step.
//!
//! How a global batch is divided into micro-batches, and these among devices, changes nothing: they are consecutive
//! slices of it. Two settings with
//! equal global batches see equal data.
//!
//! Rows of similar length are grouped only where the settings ask for it. There is no padding that grouping could save
//! here, and attention stays within documents, so a step costs what its tokens cost in any order; but the loss depends
//! on the order, and stacks that pad do group.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::grouping::LengthGroups;
use super::order::Permutation;
use super::packing::best_fit_decreasing;
use super::{DataError, DocumentSet, MicroBatch};
use peft_tune_core::recipe::{BatchSettings, TrainingLength};

/// The order in which an epoch takes the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As they stand in the files.
    File,
    /// Shuffled again in each epoch.
    Shuffled { seed: u64 },
}

/// The training documents, dealt out in steps.
#[derive(Clone, Debug)]
pub struct BatchSource {
    documents: DocumentSet,
    rows: Rows,
    batch: BatchSettings,
    order: RowOrder,
    groups: Option<LengthGroups>,
}

/// Documents of each row.
#[derive(Clone, Debug)]
enum Rows {
    /// Row i is document i of so many.
    OneEach(usize),
    Packed {
        documents: Vec<u32>,
        /// Where each row ends in `documents`.
        ends: Vec<u32>,
    },
}

/// Rows that are described one by one: of more, an even sample is.
const DESCRIBED: usize = 1 << 18;
/// Rows with the most tokens that are described in any case: no micro-batch takes more memory than these.
const LONGEST: usize = 256;

impl BatchSource {
    /// Deals `documents` out as `batch` says. The documents must have been cut to its sequence length.
    ///
    /// # Errors
    /// Fails where a batch size is zero or there are no documents.
    pub fn new(documents: DocumentSet, batch: &BatchSettings, order: RowOrder) -> Result<Self, DataError> {
        let at_least_one = |key, value| match value {
            0 => Err(DataError::TooSmall { key, value, least: 1 }),
            _ => Ok(()),
        };
        at_least_one("batch.micro_batch", batch.micro_batch)?;
        at_least_one("batch.gradient_accumulation", batch.gradient_accumulation)?;
        at_least_one("batch.devices", batch.devices)?;
        at_least_one("data.train", documents.len())?;
        let rows = if batch.packing {
            let lengths: Vec<usize> = (0..documents.len()).map(|index| documents.tokens(index)).collect();
            Rows::packed(&best_fit_decreasing(&lengths, batch.sequence_length))
        } else {
            Rows::OneEach(documents.len())
        };
        let groups = batch.group_by_length.then(|| LengthGroups::new(batch.global_batch()));
        Ok(Self {
            documents,
            rows,
            batch: batch.clone(),
            order,
            groups,
        })
    }

    /// Rows in an epoch.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Tokens in an epoch.
    pub fn tokens_per_epoch(&self) -> u64 {
        self.documents.statistics().tokens
    }

    /// Target tokens in an epoch.
    pub fn target_tokens_per_epoch(&self) -> u64 {
        self.documents.statistics().target_tokens
    }

    /// Mean tokens of a row.
    pub fn mean_tokens_per_row(&self) -> f64 {
        self.tokens_per_epoch() as f64 / self.rows() as f64
    }

    /// Mean documents of a row: 1 without packing.
    pub fn mean_documents_per_row(&self) -> f64 {
        self.documents.len() as f64 / self.rows() as f64
    }

    /// Steps that an epoch takes, the last one shared with the next epoch where the rows do not divide evenly.
    pub fn steps_per_epoch(&self) -> u64 {
        self.rows().div_ceil(self.batch.global_batch()) as u64
    }

    /// Steps that a training of the given length takes, at least one.
    pub fn steps(&self, length: TrainingLength) -> u64 {
        let rows = match length {
            TrainingLength::Steps(steps) => return steps.max(1),
            TrainingLength::Epochs(epochs) => (epochs * self.rows() as f64).ceil() as u64,
            TrainingLength::Tokens(tokens) => self.rows_of_tokens(tokens),
        };
        rows.div_ceil(self.batch.global_batch() as u64).max(1)
    }

    /// The micro-batches of step `step`, which counts from 0.
    pub fn global_batch(&self, step: u64) -> Vec<MicroBatch> {
        let (micro_batch, first) = (self.batch.micro_batch, step * self.batch.global_batch() as u64);
        let micro_batches = (0..self.batch.micro_batches()).map(|number| {
            let mut batch = MicroBatch::new();
            for row in 0..micro_batch {
                self.append(self.row_at(first + (number * micro_batch + row) as u64), &mut batch);
            }
            batch
        });
        micro_batches.collect()
    }

    /// The micro-batch that needs the most memory: of the rows with the most tokens.
    pub fn longest_micro_batch(&self) -> MicroBatch {
        let rows = self.longest_rows(self.batch.micro_batch);
        let mut batch = MicroBatch::new();
        // Data with fewer rows than a micro-batch is repeated within it.
        for row in rows.iter().cycle().take(self.batch.micro_batch) {
            self.append(*row, &mut batch);
        }
        batch
    }

    /// The `count` rows with the most tokens, these first; of equal ones those that come first.
    fn longest_rows(&self, count: usize) -> Vec<usize> {
        let mut found = BinaryHeap::new();
        for row in 0..self.rows() {
            found.push((Reverse(self.row_tokens(row)), row));
            if found.len() > count {
                found.pop();
            }
        }
        found.into_sorted_vec().into_iter().map(|(_, row)| row).collect()
    }

    /// (tokens, target tokens) of the documents of every row: what a step costs follows from them. Of more than 262,144
    /// rows, those of an even sample of so many, and of the 256 rows with the most tokens.
    pub fn row_documents(&self) -> Vec<Vec<(usize, usize)>> {
        let of_document = |index: usize| (self.documents.tokens(index), self.documents.target_tokens(index));
        let of_row = |row: usize| self.rows.documents(row).map(of_document).collect();
        let rows = self.rows();
        if rows <= DESCRIBED {
            return (0..rows).map(of_row).collect();
        }
        let sample = (0..DESCRIBED).map(|index| (index as u128 * rows as u128 / DESCRIBED as u128) as usize);
        sample.chain(self.longest_rows(LONGEST)).map(of_row).collect()
    }

    /// The row at `position` of the endless sequence of epochs.
    fn row_at(&self, position: u64) -> usize {
        let (epoch, position) = (position / self.rows() as u64, (position % self.rows() as u64) as usize);
        let RowOrder::Shuffled { seed } = self.order else {
            return position;
        };
        let shuffled = Permutation::new(seed, epoch, self.rows());
        match &self.groups {
            None => shuffled.at(position),
            Some(groups) => groups.row_at(epoch, position, &shuffled, |row| self.row_tokens(row)),
        }
    }

    fn row_tokens(&self, row: usize) -> usize {
        self.rows.documents(row).map(|index| self.documents.tokens(index)).sum()
    }

    fn append(&self, row: usize, batch: &mut MicroBatch) {
        for index in self.rows.documents(row) {
            let document = self.documents.document(index);
            batch.push(&document.input_ids, document.labels());
        }
    }

    /// Rows from the beginning that hold at least `tokens` tokens.
    fn rows_of_tokens(&self, tokens: u64) -> u64 {
        let epochs = tokens / self.tokens_per_epoch();
        let mut left = tokens % self.tokens_per_epoch();
        let mut position = epochs * self.rows() as u64;
        while left > 0 {
            left = left.saturating_sub(self.row_tokens(self.row_at(position)) as u64);
            position += 1;
        }
        position
    }
}

impl Rows {
    fn packed(rows: &[Vec<u32>]) -> Self {
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len() as u32;
            Some(*end)
        });
        Self::Packed {
            documents: rows.concat(),
            ends: ends.collect(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::OneEach(count) => *count,
            Self::Packed { ends, .. } => ends.len(),
        }
    }

    fn documents(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        let (one, several) = match self {
            Self::OneEach(_) => (Some(row), &[][..]),
            Self::Packed { documents, ends } => {
                let start = if row == 0 { 0 } else { ends[row - 1] };
                (None, &documents[start as usize..ends[row] as usize])
            }
        };
        one.into_iter().chain(several.iter().map(|index| *index as usize))
    }
}

/// Micro-batches of `rows` windows each that go once through a set, in file order, as far as `limit` documents. A document
/// that is not longer than the set's window is one window.
pub fn evaluation_batches(
    documents: &DocumentSet,
    rows: usize,
    limit: Option<usize>,
) -> impl Iterator<Item = MicroBatch> + '_ {
    let end = limit.map_or(documents.len(), |limit| limit.min(documents.len()));
    let mut windows = (0..end).flat_map(|index| documents.windows(index));
    std::iter::from_fn(move || {
        let mut batch = MicroBatch::new();
        for window in windows.by_ref().take(rows.max(1)) {
            batch.push(&window.input_ids, window.labels());
        }
        (batch.tokens() > 0).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::token_writer::{Set, TokenWriter};
    use super::super::tokens::{RowKind, TokenRow, Width};
    use super::*;

    /// Documents of the given lengths; every token of document i is i.
    fn documents(lengths: &[usize]) -> DocumentSet {
        let mut writer = TokenWriter::in_memory(Width::Two);
        for (index, length) in lengths.iter().enumerate() {
            let ids = vec![index as u32; *length];
            let row = TokenRow {
                labels: ids.clone(),
                ids,
                kind: RowKind::Whole,
            };
            writer.push(Set::Train, Some(row)).unwrap();
        }
        DocumentSet::cut(&writer.into_tables().unwrap().train, 16)
    }

    fn source(lengths: &[usize], micro_batch: usize, gradient_accumulation: usize, packing: bool) -> BatchSource {
        let batch = BatchSettings {
            micro_batch,
            gradient_accumulation,
            sequence_length: 16,
            packing,
            ..Default::default()
        };
        BatchSource::new(documents(lengths), &batch, RowOrder::Shuffled { seed: 1 }).unwrap()
    }

    /// The documents of a step, in order.
    fn seen(source: &BatchSource, step: u64) -> Vec<u32> {
        let batches = source.global_batch(step);
        let starts = |batch: &MicroBatch| {
            let starts = batch.offsets[..batch.offsets.len() - 1].iter();
            starts.map(|at| batch.input_ids[*at as usize]).collect::<Vec<_>>()
        };
        batches.iter().flat_map(starts).collect()
    }

    proptest! {
        #[test]
        fn an_epoch_takes_every_document_once(
            lengths in prop::collection::vec(2_usize..=16, 1..60),
            packing: bool,
            micro_batch in 1_usize..4,
        ) {
            let source = source(&lengths, micro_batch, 2, packing);
            // So many steps end with an epoch, wherever the others end.
            let global = 2 * micro_batch;
            let steps = source.rows() as u64;
            let mut all: Vec<u32> = (0..steps).flat_map(|step| seen(&source, step)).collect();
            all.sort_unstable();
            let expected: Vec<u32> = (0..lengths.len() as u32).flat_map(|d| std::iter::repeat_n(d, global)).collect();
            prop_assert_eq!(all, expected);
        }

        #[test]
        fn the_division_into_micro_batches_changes_no_data(
            lengths in prop::collection::vec(2_usize..=16, 1..60),
            packing: bool,
            step in 0_u64..50,
        ) {
            let whole = seen(&source(&lengths, 12, 1, packing), step);
            for (micro_batch, accumulation) in [(1, 12), (3, 4), (6, 2)] {
                prop_assert_eq!(&whole, &seen(&source(&lengths, micro_batch, accumulation, packing), step));
            }
        }
    }

    #[test]
    fn epochs_differ_and_a_seed_repeats() {
        let source = source(&[3; 20], 20, 1, false);
        assert_ne!(seen(&source, 0), seen(&source, 1));
        assert_eq!(seen(&source, 1), seen(&source.clone(), 1));
    }

    proptest! {
        #[test]
        fn grouped_rows_are_the_same_rows_whatever_the_micro_batch(
            lengths in prop::collection::vec(2_usize..=16, 4..200),
        ) {
            let grouped = |micro_batch, gradient_accumulation| {
                let batch = BatchSettings {
                    micro_batch,
                    gradient_accumulation,
                    sequence_length: 16,
                    group_by_length: true,
                    ..Default::default()
                };
                BatchSource::new(documents(&lengths), &batch, RowOrder::Shuffled { seed: 1 }).unwrap()
            };
            let (whole, halves) = (grouped(4, 1), grouped(2, 2));
            let steps = lengths.len() as u64;
            let mut all = Vec::new();
            for step in 0..steps {
                let rows = seen(&whole, step);
                prop_assert_eq!(&rows, &seen(&halves, step));
                all.extend(rows);
            }
            all.sort_unstable();
            let expected: Vec<u32> = (0..lengths.len() as u32).flat_map(|d| std::iter::repeat_n(d, 4)).collect();
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn grouping_puts_rows_of_similar_length_into_a_step() {
        let lengths: Vec<usize> = (0..400).map(|index| 2 + index * 7 % 15).collect();
        let spread = |group_by_length| {
            let batch = BatchSettings {
                micro_batch: 8,
                sequence_length: 16,
                group_by_length,
                ..Default::default()
            };
            let source = BatchSource::new(documents(&lengths), &batch, RowOrder::Shuffled { seed: 1 }).unwrap();
            let of_step = |step| {
                let rows = seen(&source, step).into_iter().map(|row| lengths[row as usize]);
                let (least, most) = rows.fold((usize::MAX, 0), |(least, most), length| {
                    (least.min(length), most.max(length))
                });
                most - least
            };
            (0..source.steps_per_epoch()).map(of_step).sum::<usize>()
        };
        assert!(
            spread(true) * 5 < spread(false),
            "{} of {}",
            spread(true),
            spread(false)
        );
    }

    #[test]
    fn file_order_is_kept() {
        let batch = BatchSettings {
            micro_batch: 2,
            gradient_accumulation: 1,
            sequence_length: 16,
            ..Default::default()
        };
        let source = BatchSource::new(documents(&[2; 3]), &batch, RowOrder::File).unwrap();
        assert_eq!((seen(&source, 0), seen(&source, 1)), (vec![0, 1], vec![2, 0]));
    }

    #[test]
    fn lengths_become_steps() {
        let source = source(&[4; 10], 2, 2, false);
        assert_eq!(source.steps_per_epoch(), 3);
        let cases = [
            (TrainingLength::Steps(7), 7),
            (TrainingLength::Epochs(1.0), 3),
            (TrainingLength::Epochs(2.0), 5),
            (TrainingLength::Tokens(1), 1),
            (TrainingLength::Tokens(16), 1),
            (TrainingLength::Tokens(17), 2),
            (TrainingLength::Tokens(80), 5),
        ];
        for (length, steps) in cases {
            assert_eq!(source.steps(length), steps, "{length:?}");
        }
    }

    #[test]
    fn packed_rows_hold_whole_documents() {
        let source = source(&[10, 6, 16, 5, 5, 5], 1, 1, true);
        assert_eq!(source.rows(), 3);
        assert_eq!(source.mean_documents_per_row(), 2.0);
        for step in 0..3 {
            let [batch] = &source.global_batch(step)[..] else {
                panic!("one micro-batch")
            };
            assert!(batch.tokens() <= 16 && batch.longest() <= 16);
        }
    }

    #[test]
    fn evaluation_goes_through_once() {
        let documents = documents(&[2, 3, 4, 5, 6]);
        let tokens = |limit| {
            evaluation_batches(&documents, 2, limit)
                .map(|b| b.tokens())
                .collect::<Vec<_>>()
        };
        assert_eq!(tokens(None), [5, 9, 6]);
        assert_eq!(tokens(Some(3)), [5, 4]);
    }
}
