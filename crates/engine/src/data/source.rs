//! Steps, and the rows that make them up.
//!
//! The rows of an epoch are put into an order that depends on the seed and the epoch alone. An epoch takes each of them
//! once and begins with a step of its own ([`EpochSteps`]): its last step holds what is left, in as many micro-batches as
//! that needs, and data with fewer rows than a global batch are one step. That holds whatever the length of a training is
//! given in. The loss of a step is the mean over its own targets, however few.
//!
//! The sets of a mixture take turns ([`super::mixture`]): an epoch has as many rows as all sets together, of each set its
//! share. Its turns are the same in each epoch, and each set goes through shuffled epochs of its own. Documents are packed
//! with those of their own set. Grouped by length, a mixture has its shares in each span of 50 steps.
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
use std::ops::Range;

use super::grouping::{Epoch, LengthGroups};
use super::mixture::Mixture;
use super::order::{Permutation, RowOrder};
use super::packing::best_fit_decreasing;
use super::{DataError, DocumentSet, MicroBatch, PreparedData};
use peft_tune_core::recipe::{BatchSettings, EpochSteps, Recipe, TrainingLength};

/// The training documents, dealt out in steps.
#[derive(Clone, Debug)]
pub struct BatchSource {
    documents: DocumentSet,
    rows: Rows,
    batch: BatchSettings,
    epoch_steps: EpochSteps,
    /// Whether steps that the end of an epoch cuts short are passed over.
    is_full_only: bool,
    order: RowOrder,
    groups: Option<LengthGroups>,
    mixture: Option<Mixture>,
    /// Tokens of an epoch; in a mixture, of a mean one.
    tokens: u64,
    target_tokens: u64,
}

/// Documents of each row.
#[derive(Clone, Debug)]
enum Rows {
    /// Row i is document i of so many.
    OneEach(usize),
    Packed {
        documents: Vec<u32>,
        /// Ends of the rows in `documents`.
        ends: Vec<u32>,
    },
}

/// Rows that are described one by one: of more, an even sample is.
const DESCRIBED: usize = 1 << 18;
/// Rows with the most tokens that are described in any case: no micro-batch takes more memory than these.
const LONGEST: usize = 256;

impl BatchSource {
    /// The training documents of a recipe, in the order that it asks for.
    ///
    /// # Errors
    /// See [`BatchSource::new`].
    pub fn of_recipe(data: &PreparedData, recipe: &Recipe) -> Result<Self, DataError> {
        let order = match recipe.training.shuffle {
            true => RowOrder::Shuffled {
                seed: recipe.training.seed,
            },
            false => RowOrder::File,
        };
        Self::new(data.train().clone(), &recipe.batch, order)
    }

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
        let sets = documents.set_ranges();
        let (rows, row_ranges) = match batch.packing {
            true => {
                let pack = |documents: &DocumentSet, range: &Range<usize>| {
                    let lengths: Vec<usize> = range.clone().map(|index| documents.tokens(index)).collect();
                    best_fit_decreasing(&lengths, batch.sequence_length)
                };
                Rows::packed(sets.iter().map(|set| (set.start, pack(&documents, set))))
            }
            false => (Rows::OneEach(documents.len()), sets),
        };
        let mixture = documents
            .weights()
            .map(|weights| Mixture::new(row_ranges.into_iter().zip(weights.iter().copied())));
        let groups = batch.group_by_length.then(|| LengthGroups::new(batch.global_batch()));
        let statistics = documents.statistics();
        let epoch_steps = EpochSteps::new(rows.len() as u64, batch);
        let mut source = Self {
            documents,
            rows,
            batch: batch.clone(),
            epoch_steps,
            is_full_only: false,
            order,
            groups,
            mixture,
            tokens: statistics.tokens,
            target_tokens: statistics.target_tokens,
        };
        if let Some(mixture) = &source.mixture {
            source.tokens = mixture.mean_sum(|row| source.row_tokens(row) as u64).round() as u64;
            let targets = mixture.mean_sum(|row| source.row_target_tokens(row) as u64);
            source.target_tokens = targets.round() as u64;
        }
        Ok(source)
    }

    /// The source in full steps alone, for whoever measures what a step takes: the last step of an epoch is passed over where it
    /// is shorter than others.
    #[must_use]
    pub fn of_full_steps(mut self) -> Self {
        self.is_full_only = true;
        self
    }

    /// Rows in an epoch.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// How often an epoch goes through the rows of each set of a mixture; nothing where no sets are mixed.
    pub fn passes(&self) -> Vec<f64> {
        self.mixture.iter().flat_map(Mixture::passes).collect()
    }

    /// Tokens in an epoch; of a mixture, where no epoch need be like another, in a mean one.
    pub fn tokens_per_epoch(&self) -> u64 {
        self.tokens
    }

    /// Target tokens in an epoch, or in the mean one.
    pub fn target_tokens_per_epoch(&self) -> u64 {
        self.target_tokens
    }

    /// Mean tokens of a row.
    pub fn mean_tokens_per_row(&self) -> f64 {
        self.tokens_per_epoch() as f64 / self.rows() as f64
    }

    /// Mean documents of a row: 1 without packing.
    pub fn mean_documents_per_row(&self) -> f64 {
        let documents = match &self.mixture {
            None => self.documents.len() as f64,
            Some(mixture) => mixture.mean_sum(|row| self.rows.documents(row).count() as u64),
        };
        documents / self.rows() as f64
    }

    /// Steps that an epoch takes, the last one shorter where the rows do not divide evenly.
    pub fn steps_per_epoch(&self) -> u64 {
        self.epoch_steps.per_epoch()
    }

    /// Steps that a training of the given length takes, at least one.
    pub fn steps(&self, length: TrainingLength) -> u64 {
        match length {
            TrainingLength::Steps(steps) => steps.max(1),
            TrainingLength::Epochs(epochs) => self.epoch_steps.of_epochs(epochs),
            TrainingLength::Tokens(tokens) => self.epoch_steps.of_rows(self.rows_of_tokens(tokens)),
        }
    }

    /// How often the first `steps` steps go through the rows.
    pub fn epochs_of(&self, steps: u64) -> f64 {
        self.epoch_steps.epochs_of(steps)
    }

    /// Steps whose micro-batches are prepared ahead of the one that is under way.
    pub fn prefetch_depth(&self) -> usize {
        self.batch.prefetch_depth
    }

    /// The micro-batches of step `step`, which counts from 0: at the end of an epoch there may be fewer, and the last of them smaller.
    pub fn global_batch(&self, step: u64) -> Vec<MicroBatch> {
        let step = match self.is_full_only {
            true => self.epoch_steps.full_step(step),
            false => step,
        };
        let mut rows = self.epoch_steps.rows_of(step);
        let mut micro_batches = Vec::new();
        while !rows.is_empty() {
            let mut batch = MicroBatch::new();
            for position in rows.by_ref().take(self.batch.micro_batch) {
                self.append(self.row_at(position), &mut batch);
            }
            micro_batches.push(batch);
        }
        micro_batches
    }

    /// The micro-batch that needs the most memory: of the rows with the most tokens.
    pub fn longest_micro_batch(&self) -> MicroBatch {
        let mut batch = MicroBatch::new();
        for row in self.longest_rows(self.batch.micro_batch) {
            self.append(row, &mut batch);
        }
        batch
    }

    /// The `count` rows with the most tokens, these first; of equal ones those that come first.
    fn longest_rows(&self, count: usize) -> Vec<usize> {
        let mut found = BinaryHeap::new();
        for row in self.typical_rows() {
            found.push((Reverse(self.row_tokens(row)), row));
            if found.len() > count {
                found.pop();
            }
        }
        found.into_sorted_vec().into_iter().map(|(_, row)| row).collect()
    }

    /// The rows of an epoch in any order; of a mixture rows that stand for those of any.
    fn typical_rows(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match &self.mixture {
            None => Box::new(0..self.rows()),
            Some(mixture) => Box::new(mixture.typical_rows(|row| self.row_tokens(row)).into_iter()),
        }
    }

    /// (tokens, target tokens) of the documents of every row of an epoch: what a step costs follows from them. Of more than 262,144
    /// rows, those of an even sample of so many, and of the 256 rows with the most tokens.
    pub fn row_documents(&self) -> Vec<Vec<(usize, usize)>> {
        let of_document = |index: usize| (self.documents.tokens(index), self.documents.target_tokens(index));
        let of_row = |row: usize| self.rows.documents(row).map(of_document).collect();
        let rows = self.rows();
        let typical: Vec<usize> = self.typical_rows().collect();
        if rows <= DESCRIBED {
            return typical.into_iter().map(of_row).collect();
        }
        let spaced = |index: usize| (index as u128 * rows as u128 / DESCRIBED as u128) as usize;
        let sample = (0..DESCRIBED).map(|index| typical[spaced(index)]);
        sample.chain(self.longest_rows(LONGEST)).map(of_row).collect()
    }

    /// The row at `position` of all epochs, one after the other.
    fn row_at(&self, position: u64) -> usize {
        let (epoch, position) = (position / self.rows() as u64, (position % self.rows() as u64) as usize);
        let RowOrder::Shuffled { seed } = self.order else {
            return match &self.mixture {
                None => position,
                Some(mixture) => mixture.row_at(epoch, position, self.order),
            };
        };
        let shuffled = Permutation::new(seed, epoch, self.rows());
        let at = |position| match &self.mixture {
            None => shuffled.at(position),
            Some(mixture) => mixture.row_at(epoch, position, self.order),
        };
        let Some(groups) = &self.groups else {
            return at(position);
        };
        let epoch = Epoch {
            number: epoch,
            rows: self.rows(),
            key: shuffled.key(),
            at,
        };
        groups.row_at(&epoch, position, |row| self.row_tokens(row))
    }

    fn row_tokens(&self, row: usize) -> usize {
        self.rows.documents(row).map(|index| self.documents.tokens(index)).sum()
    }

    fn row_target_tokens(&self, row: usize) -> usize {
        let documents = self.rows.documents(row);
        documents.map(|index| self.documents.target_tokens(index)).sum()
    }

    fn append(&self, row: usize, batch: &mut MicroBatch) {
        for index in self.rows.documents(row) {
            let document = self.documents.document(index);
            batch.push(&document.input_ids, document.labels());
        }
    }

    /// Whole epochs that hold at most `tokens` tokens, and how many these hold.
    fn epochs_of_tokens(&self, tokens: u64) -> (u64, u64) {
        let mut epochs = tokens / self.tokens_per_epoch().max(1);
        let Some(mixture) = &self.mixture else {
            return (epochs, epochs * self.tokens_per_epoch());
        };
        // The epochs of a mixture differ.
        loop {
            let before = mixture.sum_of_epochs(epochs, self.order, |row| self.row_tokens(row) as u64);
            if before <= tokens {
                return (epochs, before);
            }
            epochs -= 1;
        }
    }

    /// Rows from the beginning that hold at least `tokens` tokens.
    fn rows_of_tokens(&self, tokens: u64) -> u64 {
        let (epochs, before) = self.epochs_of_tokens(tokens);
        let mut left = tokens - before;
        let mut position = epochs * self.rows() as u64;
        while left > 0 {
            left = left.saturating_sub(self.row_tokens(self.row_at(position)) as u64);
            position += 1;
        }
        position
    }
}

impl Rows {
    /// The rows of several sets: the first document of each, and the documents of its rows, counted from there. Beside them
    /// which rows are whose.
    fn packed(sets: impl Iterator<Item = (usize, Vec<Vec<u32>>)>) -> (Self, Vec<Range<usize>>) {
        let (mut documents, mut ends, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
        for (first, rows) in sets {
            let begin = ends.len();
            for row in rows {
                documents.extend(row.iter().map(|document| first as u32 + document));
                ends.push(documents.len() as u32);
            }
            ranges.push(begin..ends.len());
        }
        (Self::Packed { documents, ends }, ranges)
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

/// Micro-batches of `rows` windows each that go once through a set, in file order, as far as `limit` documents. Of a mixture
/// the sets take turns, each as often as it has documents, so that any limit leaves all of them in. A document that is not
/// longer than the set's window is one window.
pub fn evaluation_batches(
    documents: &DocumentSet,
    rows: usize,
    limit: Option<usize>,
) -> impl Iterator<Item = MicroBatch> + '_ {
    let end = limit.map_or(documents.len(), |limit| limit.min(documents.len()));
    let mut windows = documents
        .in_turns()
        .take(end)
        .flat_map(|document| documents.windows(document));
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

    use super::super::length_limit::LengthLimit;
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
        DocumentSet::cut(&writer.into_tables().unwrap().train, LengthLimit::cutting(16))
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
            let steps = source.steps_per_epoch();
            prop_assert_eq!(steps, source.rows().div_ceil(2 * micro_batch) as u64);
            for epoch in 0..3 {
                let of_epoch = epoch * steps..(epoch + 1) * steps;
                let mut all: Vec<u32> = of_epoch.clone().flat_map(|step| seen(&source, step)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..lengths.len() as u32).collect::<Vec<_>>());
                // All steps but the last have all their micro-batches, and none is empty.
                for step in of_epoch {
                    let batches = source.global_batch(step);
                    prop_assert!(batches.iter().all(|batch| batch.tokens() > 0));
                    prop_assert!(batches.len() == 2 || (step + 1).is_multiple_of(steps));
                }
            }
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

    /// Two sets with the given weights; tokens of the first are below 100, those of the second from 100 on.
    fn mixed(sets: [(&[usize], f64); 2], batch: &BatchSettings, seed: u64) -> BatchSource {
        let of_set = |(number, (lengths, _)): (usize, &(&[usize], f64))| {
            let mut writer = TokenWriter::in_memory(Width::Two);
            for (index, length) in lengths.iter().enumerate() {
                let ids = vec![(100 * number + index) as u32; *length];
                let row = TokenRow {
                    labels: ids.clone(),
                    ids,
                    kind: RowKind::Whole,
                };
                writer.push(Set::Train, Some(row)).unwrap();
            }
            let limit = LengthLimit::cutting(batch.sequence_length);
            DocumentSet::cut(&writer.into_tables().unwrap().train, limit)
        };
        let cut = sets.iter().enumerate().map(of_set).collect();
        let weights = sets.iter().map(|(_, weight)| *weight).collect();
        let documents = DocumentSet::mixed(cut, Some(weights)).unwrap();
        BatchSource::new(documents, batch, RowOrder::Shuffled { seed }).unwrap()
    }

    proptest! {
        #[test]
        fn a_mixture_is_the_same_however_a_global_batch_is_cut(
            first in prop::collection::vec(2_usize..=16, 1..60),
            second in prop::collection::vec(2_usize..=16, 1..60),
            weight in 0.05_f64..0.95,
            packing: bool,
            group_by_length: bool,
            step in 0_u64..50,
        ) {
            let of = |micro_batch, gradient_accumulation, devices| {
                let batch = BatchSettings {
                    micro_batch,
                    gradient_accumulation,
                    devices,
                    sharding: peft_tune_core::recipe::Sharding::None,
                    sequence_length: 16,
                    packing,
                    group_by_length,
                    prefetch_depth: 0,
                };
                mixed([(&first, weight), (&second, 1.0 - weight)], &batch, 1)
            };
            let whole = of(12, 1, 1);
            for (micro_batch, accumulation, devices) in [(1, 12, 1), (3, 4, 1), (3, 2, 2), (2, 2, 3)] {
                prop_assert_eq!(seen(&whole, step), seen(&of(micro_batch, accumulation, devices), step));
            }
            // A resumed training asks for this step first.
            prop_assert_eq!(seen(&whole, step), seen(&of(12, 1, 1), step));
        }

        #[test]
        fn a_step_of_a_mixture_has_its_share_of_each_set(
            first in prop::collection::vec(2_usize..=16, 20..60),
            second in prop::collection::vec(2_usize..=16, 20..60),
            weight in 0.1_f64..0.9,
            seed: u64,
        ) {
            let batch = BatchSettings {
                micro_batch: 10,
                sequence_length: 16,
                ..Default::default()
            };
            let source = mixed([(&first, weight), (&second, 1.0 - weight)], &batch, seed);
            let rows = (first.len() + second.len()) as f64;
            for step in 0..20 {
                let seen = seen(&source, step);
                let of_first = seen.iter().filter(|token| **token < 100).count();
                let of_step = seen.len() as f64;
                // Within a row at either end of the step, and half a row in an epoch for rounding.
                prop_assert!((of_first as f64 - of_step * weight).abs() < 2.0 + of_step * 0.5 / rows, "{of_first}");
            }
        }

        #[test]
        fn steps_of_a_mixture_hold_the_tokens_that_they_are_asked_for(
            first in prop::collection::vec(2_usize..=16, 1..30),
            second in prop::collection::vec(2_usize..=16, 1..30),
            tokens in 1_u64..5000,
            packing: bool,
        ) {
            let batch = BatchSettings {
                micro_batch: 1,
                sequence_length: 16,
                packing,
                ..Default::default()
            };
            let source = mixed([(&first, 0.8), (&second, 0.2)], &batch, 3);
            let steps = source.steps(TrainingLength::Tokens(tokens));
            let of_step = |step| source.global_batch(step).iter().map(|batch| batch.tokens() as u64).sum::<u64>();
            let before: u64 = (0..steps - 1).map(of_step).sum();
            prop_assert!(before < tokens && tokens <= before + of_step(steps - 1));
        }
    }

    #[test]
    fn packed_rows_hold_documents_of_one_set() {
        let batch = BatchSettings {
            micro_batch: 1,
            sequence_length: 16,
            packing: true,
            ..Default::default()
        };
        let source = mixed([(&[3; 50], 0.5), (&[5; 50], 0.5)], &batch, 1);
        assert_eq!(source.rows(), 10 + 17);
        for step in 0..100 {
            let rows = seen(&source, step);
            assert!(rows.iter().all(|token| (*token < 100) == (rows[0] < 100)), "{rows:?}");
        }
    }

    #[test]
    fn what_a_mixture_costs_is_that_of_its_shares() {
        let batch = BatchSettings {
            micro_batch: 2,
            sequence_length: 16,
            ..Default::default()
        };
        let source = mixed([(&[2; 30], 0.9), (&[12; 30], 0.1)], &batch, 1);
        assert_eq!((source.rows(), source.passes()), (60, vec![1.8, 0.2]));
        assert_eq!(source.tokens_per_epoch(), 54 * 2 + 6 * 12);
        assert_eq!(source.target_tokens_per_epoch(), 54 + 6 * 11);
        let rows = source.row_documents();
        let tokens: usize = rows.iter().flatten().map(|(tokens, _)| tokens).sum();
        assert_eq!((rows.len(), tokens), (60, 54 * 2 + 6 * 12));
        assert_eq!(source.longest_micro_batch().tokens(), 24);
        assert_eq!(source.mean_documents_per_row(), 1.0);
    }

    #[test]
    fn an_evaluation_takes_turns_among_the_sets() {
        let batch = BatchSettings {
            sequence_length: 16,
            ..Default::default()
        };
        let source = mixed([(&[2; 30], 0.9), (&[12; 10], 0.1)], &batch, 1);
        let of_second = |limit| {
            let batches = evaluation_batches(&source.documents, 1, limit);
            batches.filter(|batch| batch.input_ids[0] >= 100).count()
        };
        assert_eq!((of_second(Some(8)), of_second(Some(20)), of_second(None)), (2, 5, 10));
        assert_eq!(evaluation_batches(&source.documents, 1, None).count(), 40);
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
            let mut all = Vec::new();
            for step in 0..2 * whole.steps_per_epoch() {
                let rows = seen(&whole, step);
                prop_assert_eq!(&rows, &seen(&halves, step));
                all.extend(rows);
            }
            all.sort_unstable();
            let expected: Vec<u32> = (0..lengths.len() as u32).flat_map(|d| std::iter::repeat_n(d, 2)).collect();
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
        let steps: Vec<Vec<u32>> = (0..4).map(|step| seen(&source, step)).collect();
        assert_eq!(steps, [vec![0, 1], vec![2], vec![0, 1], vec![2]]);
        let full = source.of_full_steps();
        assert_eq!((seen(&full, 0), seen(&full, 1)), (vec![0, 1], vec![0, 1]));
    }

    #[test]
    fn data_with_fewer_rows_than_a_global_batch_are_one_step() {
        let source = source(&[5, 6, 7], 2, 4, false);
        for step in [0, 1, 7] {
            let batches = source.global_batch(step);
            let tokens: usize = batches.iter().map(MicroBatch::tokens).sum();
            assert_eq!((batches.len(), tokens), (2, 18));
        }
        // The one step of an epoch is a full one.
        assert_eq!(seen(&source.clone().of_full_steps(), 7), seen(&source, 7));
        assert_eq!(
            (source.steps(TrainingLength::Epochs(3.0)), source.epochs_of(3)),
            (3, 3.0)
        );
        let one = self::source(&[5, 6, 7], 8, 1, false);
        assert_eq!(one.longest_micro_batch().tokens(), 18);
    }

    #[test]
    fn lengths_become_steps() {
        let source = source(&[4; 10], 2, 2, false);
        assert_eq!(source.steps_per_epoch(), 3);
        let cases = [
            (TrainingLength::Steps(7), 7),
            (TrainingLength::Epochs(0.5), 2),
            (TrainingLength::Epochs(1.0), 3),
            (TrainingLength::Epochs(2.0), 6),
            (TrainingLength::Tokens(1), 1),
            (TrainingLength::Tokens(16), 1),
            (TrainingLength::Tokens(17), 2),
            (TrainingLength::Tokens(40), 3),
            (TrainingLength::Tokens(41), 4),
            (TrainingLength::Tokens(80), 6),
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
