//! Products of quantized weights with activations in 8 bits beside those in BF16, with an adapter of rank 16.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use half::bf16;
use peft_tune_core::recipe::ActivationQuantization;
use peft_tune_kernels::ops::matmul::{self, Factor, QuantizedMatrix, Term};
use peft_tune_kernels::quant::{ByteRows, Int8, Int8Blocks, Nf4, Quantized};

use crate::{LARGE, TOKENS, operations};

const RANK: usize = 16;

/// A quantized weight as a product takes it.
#[derive(Debug)]
struct Coded<W> {
    codes: W,
    storage: &'static str,
    activations: ActivationQuantization,
}

impl<W: Quantized + std::fmt::Debug + Sync> QuantizedMatrix for Coded<W> {
    fn dims2(&self) -> (usize, usize) {
        self.codes.shape()
    }

    fn bytes(&self) -> usize {
        self.codes.bytes()
    }

    fn storage(&self) -> &'static str {
        self.storage
    }

    fn is_on_cpu(&self) -> bool {
        true
    }

    fn activations(&self) -> ActivationQuantization {
        self.activations
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool> {
        self.codes.fill_int8(rows, columns, into)
    }

    fn dense(&self, dtype: DType) -> Result<Tensor> {
        self.codes.dequantize(dtype)
    }

    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> Result<()> {
        self.codes.launch_byte_rows(0..self.codes.shape().0, into)
    }

    fn fill(&self, into: &Tensor) -> Result<()> {
        self.codes.dequantize_rows_into(0..self.codes.shape().0, into)
    }

    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> Result<()> {
        self.codes.fill_block(rows, columns, into)
    }

    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [bf16]) -> Result<()> {
        self.codes.fill_block(rows, columns, into)
    }
}

/// Kinds of products: storage of the weight, and whether activations are quantized.
const KINDS: [(&str, ActivationQuantization); 5] = [
    ("bf16", ActivationQuantization::None),
    ("int8", ActivationQuantization::None),
    ("int8", ActivationQuantization::Int8Both),
    ("nf4", ActivationQuantization::None),
    ("nf4", ActivationQuantization::Int8Both),
];

fn weight(kind: usize) -> Box<dyn QuantizedMatrix> {
    let (storage, activations) = KINDS[kind];
    let weight = Tensor::randn(0f32, 0.02, (LARGE.intermediate, LARGE.hidden), &Device::Cpu).expect("a small weight");
    match storage {
        "int8" => Box::new(Coded {
            codes: Int8::quantize(&weight).expect("finite values"),
            storage,
            activations,
        }),
        _ => Box::new(Coded {
            codes: Nf4::quantize(&weight, false).expect("finite values"),
            storage,
            activations,
        }),
    }
}

fn normal(rows: usize, columns: usize) -> Tensor {
    let normal = Tensor::randn(0f32, 1.0, (rows, columns), &Device::Cpu);
    normal
        .and_then(|normal| normal.to_dtype(DType::BF16))
        .expect("small operands")
}

/// Runs a product with the weight of `kind`.
fn time(bencher: divan::Bencher, kind: usize, product: impl Fn(Factor<'_>) -> Result<Tensor>) {
    let flops = operations(2 * TOKENS * LARGE.hidden * LARGE.intermediate);
    let coded = weight(kind);
    let dense = normal(LARGE.intermediate, LARGE.hidden);
    let factor = match KINDS[kind].0 {
        "bf16" => Factor::Dense(&dense),
        _ => Factor::QuantizedMatrix(&*coded),
    };
    bencher
        .counter(flops)
        .bench_local(|| product(factor).expect("the shapes fit"));
}

#[divan::bench(args = 0..KINDS.len())]
fn forward(bencher: divan::Bencher, kind: usize) {
    let (x, u, b) = (
        normal(TOKENS, LARGE.hidden),
        normal(TOKENS, RANK),
        normal(LARGE.intermediate, RANK),
    );
    time(bencher, kind, |w| {
        matmul::nt_sum(&[Term::new(&x, w, 1.0), Term::new(&u, &b, 2.0)])
    });
}

#[divan::bench(args = 0..KINDS.len())]
fn backward(bencher: divan::Bencher, kind: usize) {
    let (dy, u, a) = (
        normal(TOKENS, LARGE.intermediate),
        normal(TOKENS, RANK),
        normal(RANK, LARGE.hidden),
    );
    time(bencher, kind, |w| {
        matmul::nn_sum(&[Term::new(&dy, w, 1.0), Term::new(&u, &a, 2.0)])
    });
}
