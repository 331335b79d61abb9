//! A matrix whose values are made where a product needs them.

use std::fmt::Debug;
use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use half::bf16;
use peft_tune_core::recipe::ActivationQuantization;

use super::order::Order;
use crate::quant::{ByteRows, Int8Blocks};

/// A matrix whose values are made on demand, block by block.
pub trait QuantizedMatrix: Debug + Sync {
    /// (rows, columns)
    fn dims2(&self) -> (usize, usize);

    /// Bytes of the codes and their constants.
    fn bytes(&self) -> usize;

    /// Name of the storage, such as `nf4`.
    fn storage(&self) -> &'static str;

    /// Whether the blocks can be filled: the codes lie on the CPU.
    fn is_on_cpu(&self) -> bool;

    /// The whole matrix, for devices and forms that have no blocks.
    fn dense(&self, dtype: DType) -> Result<Tensor>;

    /// Quantization of the rows of the left operand in products with the matrix.
    fn activations(&self) -> ActivationQuantization;

    /// Writes a block as signed codes with a factor for each 64 columns, or `false` where its own blocks lie otherwise; see
    /// [`Quantized::fill_int8`](crate::quant::Quantized::fill_int8).
    ///
    /// # Errors
    /// Errors of [`QuantizedMatrix::fill_f32`].
    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool>;

    /// Writes the whole matrix as signed bytes, on a GPU; see [`Quantized::launch_byte_rows`](crate::quant::Quantized::launch_byte_rows).
    ///
    /// # Errors
    /// A matrix that is no codes, too little room, those of the launches.
    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> Result<()>;

    /// Writes the whole matrix into `into`, contiguous and of its shape; its dtype decides. On a GPU it may be wider.
    fn fill(&self, into: &Tensor) -> Result<()>;

    /// Writes a block, row by row, into `into` (rows times columns).
    ///
    /// # Errors
    /// A block outside the matrix, codes that are not on the CPU.
    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> Result<()>;

    /// Fills as [`QuantizedMatrix::fill_f32`] does, rounded.
    ///
    /// # Errors
    /// Errors of [`QuantizedMatrix::fill_f32`].
    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [bf16]) -> Result<()>;
}

/// Whether products in this order take the rows of their left operand in 8 bits.
pub(super) fn rounds_left(matrix: &dyn QuantizedMatrix, order: Order) -> bool {
    let row = matrix.activations().row();
    match order {
        Order::Transposed => row.forward,
        Order::Straight => row.backward,
    }
}
