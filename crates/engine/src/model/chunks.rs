//! Documents cut into chunks, where a layer's attention stays in chunks: to attention each of them is a document.

use super::Stream;
use super::traced::attention::{Documents, StaysIn};

/// The documents of a stream, or their chunks.
pub(super) struct Chunks<'a> {
    documents: Documents<'a>,
    chunk: Option<usize>,
    /// Bounds of chunks, where a document is longer.
    cut: Option<Vec<u32>>,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(stream: &'a Stream<'_>, chunk: Option<usize>) -> Self {
        let documents = stream.documents();
        let offsets = chunk.map(|chunk| cut(documents.offsets, chunk));
        Self {
            documents,
            chunk,
            cut: offsets.filter(|offsets| offsets.len() != documents.offsets.len()),
        }
    }

    /// What attention stays in.
    pub(super) fn stays_in(&self) -> StaysIn<'_> {
        StaysIn {
            documents: self.cut.as_ref().map_or(self.documents, |cut| cut.as_slice().into()),
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
