//! Oracle for the tests of the products of bytes: a coded matrix, and its values and those of activations rounded in
//! F64.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use half::bf16;
use peft_tune_core::recipe::ActivationQuantization;

use crate::ops::matmul::QuantizedMatrix;
use crate::ops::matmul::order::Order;
use crate::quant::{ByteRows, Int8, Int8Blocks, Nf4, Quantized};

#[derive(Clone, Copy, Debug)]
pub(in crate::ops::matmul) enum Storage {
    Int8,
    Nf4,
    Nf4Double,
}

#[derive(Debug)]
enum Codes {
    Int8(Int8),
    Nf4(Nf4),
}

/// A quantized matrix for products of bytes.
#[derive(Debug)]
pub(in crate::ops::matmul) struct Coded {
    codes: Codes,
    activations: ActivationQuantization,
}

macro_rules! each {
    ($codes:expr, $one:ident => $body:expr) => {
        match $codes {
            Codes::Int8($one) => $body,
            Codes::Nf4($one) => $body,
        }
    };
}

impl Coded {
    pub(in crate::ops::matmul) fn new(weight: &Tensor, storage: Storage, activations: ActivationQuantization) -> Self {
        let codes = match storage {
            Storage::Int8 => Codes::Int8(Int8::quantize(weight).unwrap()),
            Storage::Nf4 => Codes::Nf4(Nf4::quantize(weight, false).unwrap()),
            Storage::Nf4Double => Codes::Nf4(Nf4::quantize(weight, true).unwrap()),
        };
        Self { codes, activations }
    }

    /// The values that the codes stand for, each column of the result in a row.
    pub(super) fn values(&self, order: Order) -> Vec<f64> {
        let dense = self.dense(DType::F32).unwrap();
        let dense = match order {
            Order::Transposed => dense,
            Order::Straight => dense.t().unwrap().contiguous().unwrap(),
        };
        let values: Vec<f32> = dense.flatten_all().unwrap().to_vec1().unwrap();
        values.into_iter().map(f64::from).collect()
    }
}

impl QuantizedMatrix for Coded {
    fn dims2(&self) -> (usize, usize) {
        each!(&self.codes, codes => codes.shape())
    }

    fn bytes(&self) -> usize {
        each!(&self.codes, codes => codes.bytes())
    }

    fn storage(&self) -> &'static str {
        match self.codes {
            Codes::Int8(_) => "int8",
            Codes::Nf4(_) => "nf4",
        }
    }

    fn is_on_cpu(&self) -> bool {
        true
    }

    fn dense(&self, dtype: DType) -> Result<Tensor> {
        each!(&self.codes, codes => codes.dequantize(dtype))
    }

    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> Result<()> {
        each!(&self.codes, codes => codes.launch_byte_rows(0..codes.shape().0, into))
    }

    fn fill(&self, into: &Tensor) -> Result<()> {
        each!(&self.codes, codes => codes.dequantize_rows_into(0..codes.shape().0, into))
    }

    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> Result<()> {
        each!(&self.codes, codes => codes.fill_block(rows, columns, into))
    }

    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [bf16]) -> Result<()> {
        each!(&self.codes, codes => codes.fill_block(rows, columns, into))
    }

    fn activations(&self) -> ActivationQuantization {
        self.activations
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool> {
        each!(&self.codes, codes => codes.fill_int8(rows, columns, into))
    }
}

/// A value and what rounding makes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounded {
    pub exact: f64,
    pub value: f64,
    /// Distance from one code to the next.
    pub scale: f64,
    /// How far off the value may be: one code where two are as near, in the precision of F32.
    pub slack: f64,
}

/// Rounds each `block` values of each row of `depth` to 127ths of their largest absolute value.
pub(super) fn rounded(values: &[f64], depth: usize, block: usize) -> Vec<Rounded> {
    let mut all = Vec::with_capacity(values.len());
    for block in values.chunks(depth).flat_map(|row| row.chunks(block)) {
        let largest = block.iter().fold(0f64, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        for exact in block {
            let code = if scale > 0.0 { exact / scale } else { 0.0 };
            let to_tie = (code.abs().fract() - 0.5).abs();
            all.push(Rounded {
                exact: *exact,
                value: code.round_ties_even() * scale,
                scale,
                slack: if to_tie < 1e-4 { scale } else { 0.0 },
            });
        }
    }
    all
}

/// The sum of the products.
pub(super) fn exact(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}
