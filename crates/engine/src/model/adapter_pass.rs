//! How the adapters see their rows in one pass: with dropout, and each its own rows where several adapters lie side by side.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | xa | (T, r) | x A^T of adapters side by side, r the sum of their ranks |
//! | owners of rows | (T, 1) U32 | the adapter that each token is answered with |
//! | owners of columns | (1, r) U32 | the adapter that each column of xa belongs to |
//!
//! With y = x W^T + xa B^T, a row whose other columns are zero gets the update of its own adapter alone: sequences of different
//! adapters go through each product together.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use super::DropoutKey;
use super::column_sums::ColumnSums;
use super::traced::own_columns;
use crate::tensor;

/// What decides how adapters see their input.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdapterPass {
    /// Key of the dropout; absent in evaluation, and where the dropout is 0.
    pub dropout: Option<DropoutKey>,
    /// Owners of the rows, where several adapters lie side by side.
    pub owners: Option<RowOwners>,
    /// Sums of the columns, where it is asked what linear layers read.
    pub sums: Option<ColumnSums>,
    /// The rows of each training, where several go through the frozen weights together.
    pub parts: Vec<RowPart>,
}

/// Rows of the stream that belong to one training.
#[derive(Clone, Debug)]
pub(crate) struct RowPart {
    pub rows: Range<usize>,
    /// How its adapters see them.
    pub pass: AdapterPass,
}

/// The adapter of each token.
#[derive(Clone, Debug)]
pub(crate) struct RowOwners(Tensor);

/// The adapter of each column of a group's xa.
#[derive(Clone, Debug)]
pub(super) struct ColumnOwners(Tensor);

impl RowOwners {
    /// Assigns the tokens of documents, given as pairs of token count and adapter in the order of the stream.
    pub(crate) fn of_documents(documents: impl Iterator<Item = (usize, u32)>, device: &Device) -> Result<Self> {
        let rows: Vec<u32> = documents
            .flat_map(|(tokens, owner)| std::iter::repeat_n(owner, tokens))
            .collect();
        Ok(Self(Tensor::from_slice(&rows, (rows.len(), 1), device)?))
    }
}

impl ColumnOwners {
    /// Assigns columns to adapters side by side with these ranks, once for each projection of a group; `None` where
    /// there is one alone.
    pub(super) fn of_ranks<'a>(parts: impl Iterator<Item = &'a [usize]>, device: &Device) -> Result<Option<Self>> {
        let of_projection = |ranks: &'a [usize]| {
            let owned = (0_u32..).zip(ranks);
            owned.flat_map(|(owner, rank)| std::iter::repeat_n(owner, *rank))
        };
        let columns: Vec<u32> = parts.flat_map(of_projection).collect();
        match columns.len() {
            0 => Ok(None),
            width => Tensor::from_slice(&columns, (1, width), device).map(|columns| Some(Self(columns))),
        }
    }

    /// Columns `first..first + width`.
    pub(super) fn narrow(&self, first: usize, width: usize) -> Result<Self> {
        self.0.narrow(1, first, width).map(Self)
    }

    /// xa (T, r) with zeros where a column is not of the row's adapter.
    pub(super) fn keep_own(&self, xa: &tensor::Tensor, pass: &AdapterPass) -> Result<tensor::Tensor> {
        let Some(RowOwners(rows)) = &pass.owners else {
            candle_core::bail!("nobody said which of several adapters each token is for");
        };
        own_columns::keep(xa, rows, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_the_columns_of_its_adapter() {
        let device = Device::Cpu;
        // Two projections; the second adapter is on the second one alone.
        let parts: [&[usize]; 2] = [&[2, 0], &[1, 1]];
        let columns = ColumnOwners::of_ranks(parts.into_iter(), &device).unwrap().unwrap();
        let pass = AdapterPass {
            owners: Some(RowOwners::of_documents([(1, 1), (2, 0)].into_iter(), &device).unwrap()),
            ..Default::default()
        };
        let xa = Tensor::arange(1_f32, 13.0, &device).unwrap().reshape((3, 4)).unwrap();
        let xa = tensor::Tensor::from(xa);
        let values = |kept: tensor::Tensor| kept.into_real().unwrap().to_vec2::<f32>().unwrap();
        let kept = values(columns.keep_own(&xa, &pass).unwrap());
        assert_eq!(
            kept,
            [[0.0, 0.0, 0.0, 4.0], [5.0, 6.0, 7.0, 0.0], [9.0, 10.0, 11.0, 0.0]]
        );
        let last = columns.narrow(3, 1).unwrap();
        let kept = last.keep_own(&xa.narrow(1, 3, 1).unwrap(), &pass).unwrap();
        assert_eq!(values(kept), [[4.0], [0.0], [0.0]]);
        assert!(columns.keep_own(&xa, &AdapterPass::default()).is_err());
    }
}
