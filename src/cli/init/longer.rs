//! Rows that are longer than the sequence length which the file will have, and what is best done with them.

use std::fmt;

use super::Answers;
use crate::cli::prepare::prepared;
use crate::cli::reading::Reading;
use crate::cli::study_rows::{files_of, quick};
use peft_tune_core::recipe::{DataSettings, Recipe, TrainingData};
use peft_tune_engine::data::on_disk;

/// Rows that are longer than a sequence length, among those that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LongerRows {
    longer: u64,
    rows: u64,
    /// Whether there are more rows, which were not looked at.
    is_sample: bool,
    pub sequence_length: usize,
}

impl LongerRows {
    /// Counts them, tokenised. `None` where none is longer, and where the model's tokenizer is not here or the rows
    /// cannot be read. Running text is split, and none of it is longer.
    pub(super) fn count(answers: &Answers, sequence_length: usize) -> Option<Self> {
        let data = DataSettings {
            train: TrainingData::from(&answers.data),
            format: answers.format,
            columns: answers.columns.clone(),
            ..DataSettings::default()
        };
        let mut recipe = Recipe::new(answers.model.as_str(), data);
        recipe.batch.sequence_length = sequence_length;
        let files = files_of(&recipe.model)?;
        let here = on_disk(&recipe.data).ok()?;
        let (recipe, sample) = quick(&recipe, &here);
        let data = prepared(&recipe, &files, Reading::shown()).ok()?;
        let sets = [data.train().statistics(), data.held_out().statistics()];
        let found = Self {
            longer: sets.iter().map(|set| set.cut_rows + set.dropped_rows).sum(),
            rows: sets.iter().map(|set| set.rows).sum(),
            is_sample: sample.is_some(),
            sequence_length,
        };
        (found.longer > 0).then_some(found)
    }

    /// Whether they are best left out: at most a tenth of the rows. An answer whose end is cut away teaches no place to
    /// stop, but where many rows are longer, more is lost without them.
    pub(super) fn are_few(&self) -> bool {
        self.longer * 10 <= self.rows
    }
}

/// `12 of 80 rows`.
impl fmt::Display for LongerRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { longer, rows, .. } = self;
        match self.is_sample {
            true => write!(f, "{longer} of the first {rows} rows"),
            false => write!(f, "{longer} of {rows} rows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_rows_are_few() {
        let of = |longer, is_sample| LongerRows {
            longer,
            rows: 80,
            is_sample,
            sequence_length: 256,
        };
        assert!(of(1, false).are_few() && of(8, false).are_few() && !of(9, false).are_few());
        assert_eq!(of(8, false).to_string(), "8 of 80 rows");
        assert_eq!(of(8, true).to_string(), "8 of the first 80 rows");
    }
}
