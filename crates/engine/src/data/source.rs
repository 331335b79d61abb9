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
        let mut rows = self.positions_of(step);
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

    /// Documents of step `step`, which counts from 0, in the order in which they go through the model.
    pub fn documents_of(&self, step: u64) -> Vec<usize> {
        let rows = self.positions_of(step).map(|position| self.row_at(position));
        rows.flat_map(|row| self.rows.documents(row)).collect()
    }

    /// The documents that are dealt out.
    pub fn documents(&self) -> &DocumentSet {
        &self.documents
    }

    /// Positions among the rows of all epochs that a step takes.
    fn positions_of(&self, step: u64) -> Range<u64> {
        let step = match self.is_full_only {
            true => self.epoch_steps.full_step(step),
            false => step,
        };
        self.epoch_steps.rows_of(step)
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

    /// (tokens, target tokens) of the documents of every row of an epoch, of a pair those of both sequences: what a step costs follows
    /// from them. Of more than 262,144 rows, those of an even sample of so many, and of the 256 rows with the most tokens.
    pub fn row_documents(&self) -> Vec<Vec<(usize, usize)>> {
        let of_document = |index: usize| self.documents.sequences(index);
        let of_row = |row: usize| self.rows.documents(row).flat_map(of_document).collect();
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
mod tests;
