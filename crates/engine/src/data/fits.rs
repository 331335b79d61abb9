//! Whether data suit a model.

use super::retained::RETAINED;
use super::{DataError, DocumentSet, PreparedData};
use peft_tune_core::architecture::Architecture;

impl PreparedData {
    /// Refuses data that every training of a model would fail on: tokens that it has no embedding for, and documents
    /// that are longer than its positions.
    ///
    /// # Errors
    /// [`DataError::TokenBeyondModel`], [`DataError::DocumentTooLong`].
    pub fn check_fits(&self, architecture: &Architecture) -> Result<(), DataError> {
        self.check_bounds(architecture.vocabulary, Some(architecture.max_positions))
    }

    /// Refuses data as [`PreparedData::check_fits`] does, by the rows of a model's embedding and, where it says how many they are, its
    /// positions.
    ///
    /// # Errors
    /// Errors of [`PreparedData::check_fits`].
    pub fn check_bounds(&self, vocabulary: usize, max_positions: Option<usize>) -> Result<(), DataError> {
        let sets = [("training", self.train()), ("held-out", self.held_out())];
        let retained = self.retained().map(|documents| (RETAINED, documents));
        for (set, documents) in sets.into_iter().chain(retained) {
            if !documents.is_surely_below(vocabulary) {
                let token = documents.highest_token() as usize;
                if token >= vocabulary {
                    return Err(DataError::TokenBeyondModel { set, token, vocabulary });
                }
            }
            // Held-out documents are scored in windows of the sequence length.
            let longest = longest_pass(documents, self.sequence_length());
            if let Some(max_positions) = max_positions
                && longest > max_positions
            {
                return Err(DataError::DocumentTooLong {
                    set,
                    tokens: longest,
                    max_positions,
                });
            }
        }
        Ok(())
    }
}

/// Tokens of the longest document, or of the longest window of one, that goes through the model at once.
fn longest_pass(documents: &DocumentSet, sequence_length: usize) -> usize {
    (documents.statistics().longest as usize).min(sequence_length)
}
