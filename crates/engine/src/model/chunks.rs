//! Documents cut into chunks, where a layer's attention stays in chunks: to attention each of them is a document.

use super::Stream;
use super::traced::Documents;
use super::traced::attention::StaysIn;
use peft_tune_core::predict;

/// The documents of a stream, or their chunks.
pub(super) struct Chunks<'a> {
    documents: Documents<'a>,
    chunk: Option<usize>,
    cut: Cut,
}

/// Bounds or lengths in place of documents that are longer than a chunk.
enum Cut {
    None,
    /// Bounds of all chunks.
    Bounds(Vec<u32>),
    /// Number of chunks of each length, on paper.
    Lengths(Vec<predict::Documents>),
}

impl<'a> Chunks<'a> {
    pub(super) fn new(stream: &'a Stream<'_>, chunk: Option<usize>) -> Self {
        let documents = stream.documents();
        let cut = match (documents, chunk) {
            (_, None) => Cut::None,
            (documents, Some(chunk)) if documents.longest() <= chunk => Cut::None,
            (Documents::Real(documents), Some(chunk)) => Cut::Bounds(cut(documents.offsets, chunk)),
            (Documents::Paper(documents), Some(chunk)) => Cut::Lengths(predict::Documents::cut(documents, chunk)),
        };
        Self { documents, chunk, cut }
    }

    /// Spans that attention stays in.
    pub(super) fn stays_in(&self) -> StaysIn<'_> {
        StaysIn {
            documents: match &self.cut {
                Cut::None => self.documents,
                Cut::Bounds(bounds) => bounds.as_slice().into(),
                Cut::Lengths(lengths) => Documents::Paper(lengths),
            },
            chunk: self.chunk,
        }
    }
}

/// Starts of all chunks of `chunk` tokens, each document's last one shorter.
fn cut(offsets: &[u32], chunk: usize) -> Vec<u32> {
    let of_document = |pair: &[u32]| (pair[0]..pair[1]).step_by(chunk);
    let starts = offsets.windows(2).flat_map(of_document);
    starts.chain(offsets.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_begin_with_their_document() {
        assert_eq!(cut(&[0, 7, 9, 9, 13], 3), [0, 3, 6, 7, 9, 12, 13]);
        assert_eq!(cut(&[0, 2, 5], 3), [0, 2, 5]);
    }
}
