//! Lengths of a study's training rows, for each way in which its settings cut the data into rows.

use std::collections::BTreeMap;

use peft_tune_core::predict::RowLengths;
use peft_tune_core::recipe::BatchSettings;

/// Settings that decide how data are cut into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowCut {
    sequence_length: usize,
    packing: bool,
}

impl RowCut {
    fn of(batch: &BatchSettings) -> Self {
        Self {
            sequence_length: batch.sequence_length,
            packing: batch.packing,
        }
    }
}

/// Lengths of the training rows by how the data are cut; rows of which none are known are taken as full.
#[derive(Clone, Debug, Default)]
pub struct TrainingRows(BTreeMap<RowCut, RowLengths>);

impl TrainingRows {
    /// Keeps the lengths of the rows of settings that cut the data as `batch` does.
    pub fn insert(&mut self, batch: &BatchSettings, lengths: RowLengths) {
        self.0.insert(RowCut::of(batch), lengths);
    }

    /// The lengths of a setting's rows; `None` where they are not known.
    pub(super) fn of(&self, batch: &BatchSettings) -> Option<&RowLengths> {
        self.0.get(&RowCut::of(batch))
    }
}
