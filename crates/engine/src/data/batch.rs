//! Micro-batches that the model is fed: documents laid end to end, without padding.
//!
//! A micro-batch is one flat stream of tokens. Rows of different length need no padding, since every token-wise op
//! works on the stream and attention stays within a document; packed and unpacked rows therefore look the same here.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `input_ids` | (tokens,) | token ids |
//! | `targets` | (tokens,) | the token that each position must predict, or [`IGNORE`] |
//! | `positions` | (tokens,) | position within the document, from 0 |
//! | `offsets` | (documents + 1,) | start of each document in the stream; the last entry is `tokens` |

use peft_tune_kernels::ops::loss_head::IGNORE;

/// One tokenised training example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    pub input_ids: Vec<u32>,
    /// Labels as many as `input_ids`, and not shifted: the token itself where it is a target, else [`IGNORE`].
    pub labels: Vec<i64>,
}

/// Documents that go through the model at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MicroBatch {
    pub input_ids: Vec<u32>,
    pub targets: Vec<i64>,
    pub positions: Vec<u32>,
    pub offsets: Vec<u32>,
}

impl MicroBatch {
    /// Lays documents end to end. Each position's target is the label of the next token of the same document; the
    /// last position of a document has none.
    pub fn from_documents<'a>(documents: impl IntoIterator<Item = &'a Document>) -> Self {
        let mut batch = Self::new();
        for document in documents {
            batch.push(&document.input_ids, document.labels.iter().copied());
        }
        batch
    }

    /// A stream without documents.
    pub fn new() -> Self {
        Self {
            offsets: vec![0],
            ..Self::default()
        }
    }

    /// Adds a document; `labels` is as long as `input_ids` and not shifted.
    pub fn push(&mut self, input_ids: &[u32], labels: impl Iterator<Item = i64>) {
        self.input_ids.extend_from_slice(input_ids);
        // All at once: the last one is no label's.
        self.targets.reserve(input_ids.len());
        self.targets.extend(labels.skip(1));
        self.targets.resize(self.input_ids.len(), IGNORE);
        self.positions.extend(0..input_ids.len() as u32);
        self.offsets.push(self.input_ids.len() as u32);
    }

    /// Adds the documents of another stream.
    pub(crate) fn append(&mut self, other: &Self) {
        let first = self.tokens() as u32;
        self.input_ids.extend_from_slice(&other.input_ids);
        self.targets.extend_from_slice(&other.targets);
        self.positions.extend_from_slice(&other.positions);
        self.offsets
            .extend(other.offsets.iter().skip(1).map(|offset| first + offset));
    }

    /// Tokens in the stream.
    pub fn tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Positions that count in the loss.
    pub fn target_tokens(&self) -> usize {
        self.targets.iter().filter(|target| **target != IGNORE).count()
    }

    /// Positions of each document that count in the loss.
    pub fn target_tokens_of_rows(&self) -> impl Iterator<Item = usize> {
        self.offsets.windows(2).map(|pair| {
            let targets = &self.targets[pair[0] as usize..pair[1] as usize];
            targets.iter().filter(|target| **target != IGNORE).count()
        })
    }

    /// Length of the longest document.
    pub fn longest(&self) -> usize {
        self.offsets
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_next_labels_of_the_same_document() {
        let first = Document {
            input_ids: vec![5, 6, 7],
            labels: vec![IGNORE, 6, 7],
        };
        let second = Document {
            input_ids: vec![8, 9],
            labels: vec![8, 9],
        };
        let batch = MicroBatch::from_documents([&first, &second]);
        assert_eq!(batch.targets, [6, 7, IGNORE, 9, IGNORE]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1]);
        assert_eq!(batch.offsets, [0, 3, 5]);
        assert_eq!((batch.tokens(), batch.target_tokens(), batch.longest()), (5, 3, 3));
        assert_eq!(batch.target_tokens_of_rows().collect::<Vec<_>>(), [2, 1]);
    }
}
