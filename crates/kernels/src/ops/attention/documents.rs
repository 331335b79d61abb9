//! Documents of the stream, by where they begin and end.

use candle_core::Tensor;

/// The documents of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Documents<'a> {
    /// (documents + 1,): start of each document; the last entry is the stream's length.
    pub offsets: &'a [u32],
    /// (2, T) U32 in a GPU's memory, where present: for each token the first token of its document, then for
    /// each the one behind its last. Kernels read nothing else of the documents, so that the same launches serve any others of as many tokens.
    pub bounds: Option<&'a Tensor>,
}

impl Documents<'_> {
    /// The elements of [`Documents::bounds`].
    pub fn token_bounds(offsets: &[u32]) -> impl Iterator<Item = u32> {
        let of_tokens = |value: fn(&[u32]) -> u32| {
            let documents = offsets.windows(2);
            documents.flat_map(move |pair| (pair[0]..pair[1]).map(move |_| value(pair)))
        };
        of_tokens(|pair| pair[0]).chain(of_tokens(|pair| pair[1]))
    }
}

impl<'a, V: AsRef<[u32]> + ?Sized> From<&'a V> for Documents<'a> {
    fn from(offsets: &'a V) -> Self {
        Self {
            offsets: offsets.as_ref(),
            bounds: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_the_bounds_of_its_document() {
        let bounds: Vec<u32> = Documents::token_bounds(&[0, 2, 2, 5]).collect();
        assert_eq!(bounds, [0, 0, 2, 2, 2, 2, 2, 5, 5, 5]);
    }
}
