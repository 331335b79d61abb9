//! A micro-batch on paper: how long its documents are, and whose rows it has.

use std::ops::Range;

use peft_tune_core::predict::StreamShape;

/// Micro-batches of one or more trainings, one behind the other, of which only the sizes are there. Numbers of documents
/// and targets may be means, with fractions.
#[derive(Clone, Debug)]
pub(crate) struct PaperBatch {
    /// All micro-batches as one.
    pub shape: StreamShape,
    /// Each training's part.
    pub parts: Vec<PaperPart>,
}

/// Part of a micro-batch that one training has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PaperPart {
    pub rows: Range<usize>,
    pub targets: usize,
}

impl PaperBatch {
    /// Micro-batches like `streams`, one for each training. Together they have as many tokens as the rounded sum of theirs.
    pub(crate) fn of(streams: &[&StreamShape]) -> Self {
        let (mut parts, mut end, mut tokens) = (Vec::with_capacity(streams.len()), 0, 0.0);
        for stream in streams {
            tokens += stream.tokens();
            let start = std::mem::replace(&mut end, f64::round(tokens) as usize);
            parts.push(PaperPart {
                rows: start..end,
                targets: stream.targets.round() as usize,
            });
        }
        Self {
            shape: StreamShape::end_to_end(streams),
            parts,
        }
    }

    /// Rows of all trainings.
    pub(crate) fn tokens(&self) -> usize {
        self.parts.last().map_or(0, |part| part.rows.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::predict::Documents;

    #[test]
    fn fractions_of_tokens_are_rounded_together() {
        let stream = StreamShape {
            documents: vec![Documents { tokens: 5, count: 0.5 }],
            targets: 1.6,
        };
        let batch = PaperBatch::of(&[&stream, &stream, &stream]);
        assert_eq!(batch.tokens(), 8);
        let parts = batch.parts.iter().map(|part| (part.rows.clone(), part.targets));
        assert_eq!(parts.collect::<Vec<_>>(), [(0..3, 2), (3..5, 2), (5..8, 2)]);
    }
}
