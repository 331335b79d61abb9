//! Rows of a quantized or sparse weight as products take them.

use std::ops::Range;

use candle_core::{DType, Tensor};
use half::bf16;

use super::codes::Codes;
use peft_tune_core::recipe::ActivationQuantization;
use peft_tune_kernels::ops::matmul::QuantizedMatrix;
use peft_tune_kernels::quant::{ByteRows, Int8Blocks};

/// Rows of a quantized or sparse weight; products widen them block by block.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedRows {
    pub codes: Codes,
    pub rows: Range<usize>,
    /// Compute dtype.
    pub dtype: DType,
    /// Quantization of the activations that products with the weight take.
    pub activations: ActivationQuantization,
}

impl QuantizedRows {
    /// `rows` of this weight as rows of the whole one.
    fn of_whole(&self, rows: Range<usize>) -> Range<usize> {
        self.rows.start + rows.start..self.rows.start + rows.end
    }
}

impl QuantizedMatrix for QuantizedRows {
    fn dims2(&self) -> (usize, usize) {
        (self.rows.len(), self.codes.shape().1)
    }

    fn bytes(&self) -> usize {
        // Of the rows only: their part of the whole.
        self.codes.bytes() * self.rows.len() / self.codes.shape().0.max(1)
    }

    fn storage(&self) -> &'static str {
        match self.codes {
            Codes::Nf4(_) => "nf4",
            Codes::Int8(_) => "int8",
            Codes::Sparse(ref values) => match values.dtype() {
                DType::BF16 => "sparse_bf16",
                DType::F16 => "sparse_fp16",
                _ => "sparse_fp32",
            },
        }
    }

    fn activations(&self) -> ActivationQuantization {
        self.activations
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> candle_core::Result<bool> {
        self.codes.fill_int8(self.of_whole(rows), columns, into)
    }

    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> candle_core::Result<()> {
        self.codes.fill_byte_rows(self.rows.clone(), into)
    }

    fn is_on_cpu(&self) -> bool {
        self.codes.is_on_cpu()
    }

    fn dense(&self, dtype: DType) -> candle_core::Result<Tensor> {
        self.codes.widened(self.rows.clone(), dtype)
    }

    fn fill(&self, into: &Tensor) -> candle_core::Result<()> {
        self.codes.fill(self.rows.clone(), into)
    }

    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> candle_core::Result<()> {
        self.codes.fill_block(self.of_whole(rows), columns, into)
    }

    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [bf16]) -> candle_core::Result<()> {
        self.codes.fill_block(self.of_whole(rows), columns, into)
    }
}
