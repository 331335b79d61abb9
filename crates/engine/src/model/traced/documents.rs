//! The documents that attention and other mixers stay in: bounds in a stream, or lengths on paper.

use candle_core::Result;

use peft_tune_core::predict;
use peft_tune_kernels::ops::attention;

/// Documents of a stream.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) enum Documents<'a> {
    Real(attention::Documents<'a>),
    /// Number of documents of each length, on paper.
    Paper(&'a [predict::Documents]),
}

impl<'a> From<&'a [u32]> for Documents<'a> {
    fn from(offsets: &'a [u32]) -> Self {
        Self::Real(offsets.into())
    }
}

impl<'a> Documents<'a> {
    /// The documents as kernels take them.
    ///
    /// # Errors
    /// Documents on paper have no bounds.
    pub(in crate::model) fn real(self) -> Result<attention::Documents<'a>> {
        match self {
            Self::Real(documents) => Ok(documents),
            Self::Paper(_) => candle_core::bail!("documents on paper have no bounds"),
        }
    }

    /// Starts of all documents and the end of the last one; none on paper.
    pub(in crate::model) fn offsets(self) -> &'a [u32] {
        match self {
            Self::Real(documents) => documents.offsets,
            Self::Paper(_) => &[],
        }
    }

    /// Tokens of the longest document.
    pub(in crate::model) fn longest(self) -> usize {
        match self {
            Self::Real(documents) => lengths(documents.offsets).max().unwrap_or(0),
            Self::Paper(documents) => documents.iter().map(|one| one.tokens).max().unwrap_or(0),
        }
    }

    /// The sum over all documents of what `of` says of a document's length.
    pub(in crate::model) fn sum(self, of: impl Fn(usize) -> f64) -> f64 {
        match self {
            Self::Real(documents) => lengths(documents.offsets).map(of).sum(),
            Self::Paper(documents) => documents.iter().map(|one| one.count * of(one.tokens)).sum(),
        }
    }
}

fn lengths(offsets: &[u32]) -> impl Iterator<Item = usize> {
    offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize)
}
