//! The right operand of a product as an op.

use candle_core::{DType, Result, Tensor};

use super::order::Order;
use super::quantized_matrix::{QuantizedMatrix, rounds_left};
use crate::kernels;
use crate::ops::shape;
use crate::ops::storage::is_fused;

/// The right operand w of a product.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    Dense(&'a Tensor),
    QuantizedMatrix(&'a dyn QuantizedMatrix),
}

impl<'a> From<&'a Tensor> for Factor<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Dense(tensor)
    }
}

impl Factor<'_> {
    /// Whether the fused forms take it.
    pub(super) fn is_fused(&self) -> bool {
        match self {
            Self::Dense(tensor) => is_fused(tensor),
            Self::QuantizedMatrix(quantized) => quantized.is_on_cpu() && kernels().are_own(),
        }
    }

    /// (rows, columns)
    ///
    /// # Errors
    /// A dense operand of another rank.
    pub fn dims2(&self) -> Result<(usize, usize)> {
        match self {
            Self::Dense(tensor) => tensor.dims2(),
            Self::QuantizedMatrix(quantized) => Ok(quantized.dims2()),
        }
    }

    /// Fails unless the operand has exactly the dimensions `expected`; `what` names the op and its argument.
    pub(super) fn expect(&self, expected: &[usize; 2], what: &str) -> Result<()> {
        match self {
            Self::Dense(tensor) => shape::expect(tensor, expected, what),
            Self::QuantizedMatrix(quantized) if <[usize; 2]>::from(quantized.dims2()) == *expected => Ok(()),
            Self::QuantizedMatrix(quantized) => {
                candle_core::bail!("{what}: expected shape {expected:?}, got {:?}", quantized.dims2())
            }
        }
    }

    /// A dense operand without gaps; `None` for codes.
    pub(super) fn contiguous(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Dense(tensor) => tensor.contiguous().map(Some),
            Self::QuantizedMatrix(_) => Ok(None),
        }
    }

    /// Whether the rows of the left operand are taken in 8 bits.
    pub(super) fn rounds_left(&self, order: Order) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::QuantizedMatrix(quantized) => rounds_left(*quantized, order),
        }
    }

    /// The codes of a product that takes the rows of its left operand in 8 bits; `transposed` as in [`super::nt_sum`].
    pub(in crate::ops) fn in_bytes(&self, transposed: bool) -> Option<&dyn QuantizedMatrix> {
        let order = if transposed { Order::Transposed } else { Order::Straight };
        match self {
            Self::QuantizedMatrix(codes) if rounds_left(*codes, order) => Some(*codes),
            _ => None,
        }
    }

    /// The whole operand as a tensor in `dtype`.
    pub(super) fn to_dtype(self, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Dense(tensor) => tensor.to_dtype(dtype),
            Self::QuantizedMatrix(quantized) => quantized.dense(dtype),
        }
    }
}
