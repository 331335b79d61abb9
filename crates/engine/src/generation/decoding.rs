//! Generation step by step: several sequences side by side, each token read once.

use crate::data::MicroBatch;
use crate::model::KeyValueCache;
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
