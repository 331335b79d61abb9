//! Generation step by step: several sequences side by side, each token read once.

use candle_core::Tensor;

use crate::data::MicroBatch;
use crate::model::KeyValueCache;
use crate::{Generator, PromptError, TrainError};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Sequences that a model is continuing. Their tokens' keys and values are kept, so that a step costs its own tokens
/// and a look at what is kept.
#[derive(Debug)]
pub struct Decoding {
    pub(super) cache: KeyValueCache,
    /// The longest sequence that the positions' table was made for.
    pub(super) longest: usize,
    /// The adapter of each sequence, where several lie side by side.
    pub(super) owners: Option<Vec<u32>>,
}

impl Decoding {
    pub(super) fn new(cache: KeyValueCache, longest: usize, owners: Option<Vec<u32>>) -> Self {
        Self { cache, longest, owners }
    }

    /// Bytes of the keys and values, room for later tokens included.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Tokens of each sequence that have been read.
    pub fn lengths(&self) -> &[usize] {
        self.cache.lengths()
    }

    /// Whether a further token fits.
    pub fn has_room(&self) -> bool {
        self.lengths().iter().all(|length| *length < self.cache.capacity())
    }

    /// The longest sequence that it was started for.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }
}

impl Generator {
    /// Reads `prompts` and returns the logits (sequences, V), F32, of the token that follows each. `room` is how many
    /// tokens a sequence may have in all.
    ///
    /// # Errors
    /// No prompts, an empty one, a token outside the vocabulary, or more than the model has positions; memory.
    pub fn begin(&mut self, prompts: &[&[u32]], room: usize) -> Result<(Decoding, Tensor), TrainError> {
        self.check_shared()?;
        self.reader().begin(prompts, None, room)
    }

    /// Begins as [`Generator::begin`] does for a model with several adapters, of which sequence i is answered with
    /// number `owners[i]`, from 0.
    ///
    /// # Errors
    /// Errors of [`Generator::begin`]; [`PromptError::NoSuchAdapter`] where there is none of that number, or not one for each prompt.
    pub fn begin_each(
        &mut self,
        prompts: &[&[u32]],
        owners: &[usize],
        room: usize,
    ) -> Result<(Decoding, Tensor), TrainError> {
        let adapters = self.adapters();
        let stray = owners.iter().find(|owner| **owner >= adapters).copied();
        if stray.is_some() || owners.len() != prompts.len() {
            return Err(PromptError::NoSuchAdapter {
                number: stray.unwrap_or(owners.len()),
                adapters,
            }
            .into());
        }
        let owners = owners.iter().map(|owner| *owner as u32).collect();
        self.reader().begin(prompts, Some(owners), room)
    }

    /// Reads one more token of each sequence and returns the logits (sequences, V), F32, of the token that follows.
    ///
    /// # Errors
    /// Errors of [`Generator::begin`]; a sequence without room.
    pub fn advance(&mut self, decoding: &mut Decoding, tokens: &[u32]) -> Result<Tensor, TrainError> {
        self.reader().advance(decoding, tokens)
    }
}

/// A stream whose documents continue after so many tokens each.
pub(super) fn going_on(lengths: &[usize], tokens: &[&[u32]]) -> MicroBatch {
    let mut batch = MicroBatch::new();
    for (length, tokens) in lengths.iter().zip(tokens) {
        let first = batch.positions.len();
        batch.push(tokens, std::iter::repeat_n(IGNORE, tokens.len()));
        for position in &mut batch.positions[first..] {
            *position += *length as u32;
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_go_on_where_their_sequences_stand() {
        let batch = going_on(&[3, 0], &[&[7], &[8, 9]]);
        assert_eq!(batch.positions, [3, 0, 1]);
        assert_eq!(batch.offsets, [0, 1, 3]);
    }
}
