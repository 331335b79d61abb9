//! Generation step by step: several sequences side by side, each token read once.

use candle_core::{DType, Tensor};

use crate::data::MicroBatch;
use crate::model::{KeyValueCache, Stream};
use crate::{Generator, TrainError};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Sequences that a model is continuing. Their tokens' keys and values are kept, so that a step costs its own tokens
/// and a look at what is kept.
#[derive(Debug)]
pub struct Decoding {
    cache: KeyValueCache,
    /// The longest sequence that the positions' table was made for.
    longest: usize,
}

impl Decoding {
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
        if prompts.is_empty() {
            return Err(TrainError::EmptyPrompt);
        }
        let mut longest = 0;
        for prompt in prompts {
            self.check(prompt)?;
            longest = longest.max(prompt.len());
        }
        let base = self.base();
        let mut decoding = Decoding {
            cache: KeyValueCache::new(
                base.architecture(),
                prompts.len(),
                room.max(longest),
                base.compute_dtype(),
                base.device(),
            )?,
            longest,
        };
        let logits = self.read(&mut decoding, prompts)?;
        Ok((decoding, logits))
    }

    /// Reads one more token of each sequence and returns the logits (sequences, V), F32, of the token that follows.
    ///
    /// # Errors
    /// As [`Generator::begin`]; a sequence without room.
    pub fn advance(&mut self, decoding: &mut Decoding, tokens: &[u32]) -> Result<Tensor, TrainError> {
        let tokens: Vec<&[u32]> = tokens.chunks(1).collect();
        self.read(decoding, &tokens)
    }

    /// Reads the tokens that continue with each sequence.
    fn read(&mut self, decoding: &mut Decoding, tokens: &[&[u32]]) -> Result<Tensor, TrainError> {
        let batch = going_on(decoding.lengths(), tokens);
        let longest = batch.positions.iter().max().map_or(0, |last| *last as usize + 1);
        decoding.longest = decoding.longest.max(longest);
        let last: Vec<u32> = batch.offsets[1..].iter().map(|end| end - 1).collect();
        self.ropes.prepare(decoding.longest)?;
        let device = self.base().device().clone();
        let stream = Stream::new(&batch, None, None, &device)?;
        let normed = self.decoder.infer(&stream, &self.ropes, &mut decoding.cache)?;
        let last = Tensor::from_slice(&last, last.len(), &device)?;
        let logits = self.decoder.logits(&normed.index_select(&last, 0)?)?;
        Ok(logits.to_dtype(DType::F32)?)
    }
}

/// A stream whose documents continue after so many tokens each.
fn going_on(lengths: &[usize], tokens: &[&[u32]]) -> MicroBatch {
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
