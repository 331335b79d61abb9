//! Quantized weights for the tests of products with them.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use peft_tune_core::recipe::ActivationQuantization;

use crate::ops::matmul::QuantizedMatrix;
use crate::quant::{ByteRows, Int8Blocks, Quantized};

/// A quantized weight as a product takes it.
#[derive(Debug)]
pub(super) struct Codes<W> {
    pub weight: W,
    pub activations: ActivationQuantization,
}

impl<W> Codes<W> {
    /// Weight whose products take activations as they are.
    pub(super) fn new(weight: W) -> Self {
        Self {
            weight,
            activations: ActivationQuantization::None,
        }
    }
}

impl<W: Quantized + std::fmt::Debug + Sync> QuantizedMatrix for Codes<W> {
    fn dims2(&self) -> (usize, usize) {
        self.weight.shape()
    }

    fn bytes(&self) -> usize {
        Quantized::bytes(&self.weight)
    }

    fn storage(&self) -> &'static str {
        "nf4"
    }

    fn activations(&self) -> ActivationQuantization {
        self.activations
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool> {
        self.weight.fill_int8(rows, columns, into)
    }

    fn is_on_cpu(&self) -> bool {
        true
    }

    fn dense(&self, dtype: DType) -> Result<Tensor> {
        self.weight.dequantize(dtype)
    }

    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> Result<()> {
        self.weight.launch_byte_rows(0..self.weight.shape().0, into)
    }

    fn fill(&self, into: &Tensor) -> Result<()> {
        self.weight.dequantize_rows_into(0..self.weight.shape().0, into)
    }

    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> Result<()> {
        self.weight.fill_block(rows, columns, into)
    }

    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [half::bf16]) -> Result<()> {
        self.weight.fill_block(rows, columns, into)
    }
}
