//! The products of a mixture's experts beside the one product of a dense MLP with as many operations, and what it costs when
//! tokens crowd at some experts.

use std::fmt::{Display, Formatter, Result};

use candle_core::{DType, Device, Tensor};
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::grouped::{GroupFactors, GroupTerm, nn, nt};
use peft_tune_kernels::ops::offsets::Offsets;

use crate::{TOKENS, operations};

/// Experts, and how many of them a token goes through.
const EXPERTS: usize = 32;
const CHOSEN: usize = 4;
const ROWS: usize = TOKENS * CHOSEN;

/// Inputs and outputs of an expert.
const INNER: usize = 1536;
const OUTER: usize = 768;

/// How rows lie on the experts.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// One product of the experts that a token goes through, side by side.
    Dense,
    Even,
    /// The n-th expert has a share of 1/n.
    Zipf,
    /// All tokens go through the same experts.
    Crowded,
}

const LOADS: [(Load, DType); 8] = [
    (Load::Dense, DType::BF16),
    (Load::Even, DType::BF16),
    (Load::Zipf, DType::BF16),
    (Load::Crowded, DType::BF16),
    (Load::Dense, DType::F32),
    (Load::Even, DType::F32),
    (Load::Zipf, DType::F32),
    (Load::Crowded, DType::F32),
];

struct Case(Load, DType);

impl Display for Case {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:?} {}", self.0, self.1.as_str())
    }
}

fn cases() -> impl Iterator<Item = Case> {
    LOADS.into_iter().map(|(load, dtype)| Case(load, dtype))
}

impl Load {
    /// First row of each expert, and behind the last one the number of rows.
    fn offsets(self) -> Vec<usize> {
        let share = |expert: usize| match self {
            Self::Dense | Self::Even => 1.0,
            Self::Zipf => 1.0 / (expert + 1) as f64,
            Self::Crowded => f64::from(u8::from(expert < CHOSEN)),
        };
        let whole: f64 = (0..EXPERTS).map(share).sum();
        let before = |expert: usize| (0..expert).map(share).sum::<f64>() / whole;
        (0..=EXPERTS)
            .map(|expert| (before(expert) * ROWS as f64).round() as usize)
            .collect()
    }
}

fn random(shape: &[usize], dtype: DType) -> Tensor {
    let values = Tensor::randn(0f32, 0.3, shape, &Device::Cpu).expect("the shape is small");
    values.to_dtype(dtype).expect("every float dtype converts")
}

/// Experts' matrices as the engine keeps them, one tensor each.
fn matrices(dtype: DType) -> Vec<Tensor> {
    (0..EXPERTS).map(|_| random(&[OUTER, INNER], dtype)).collect()
}

#[divan::bench(args = cases(), sample_count = 20)]
fn forward(bencher: divan::Bencher, Case(load, dtype): &Case) {
    let bencher = bencher.counter(operations(2 * ROWS * INNER * OUTER));
    if let Load::Dense = load {
        let (x, w) = (
            random(&[TOKENS, INNER], *dtype),
            random(&[CHOSEN * OUTER, INNER], *dtype),
        );
        return bencher.bench(|| matmul::nt(&x, &w));
    }
    let (x, w, offsets) = (
        random(&[ROWS, INNER], *dtype),
        matrices(*dtype),
        Offsets::new(load.offsets()),
    );
    bencher.bench(|| nt(&[term(&x, &w)], &offsets));
}

#[divan::bench(args = cases(), sample_count = 20)]
fn backward(bencher: divan::Bencher, Case(load, dtype): &Case) {
    let bencher = bencher.counter(operations(2 * ROWS * INNER * OUTER));
    if let Load::Dense = load {
        let (dy, w) = (
            random(&[TOKENS, CHOSEN * OUTER], *dtype),
            random(&[CHOSEN * OUTER, INNER], *dtype),
        );
        return bencher.bench(|| matmul::nn(&dy, &w));
    }
    let (dy, w, offsets) = (
        random(&[ROWS, OUTER], *dtype),
        matrices(*dtype),
        Offsets::new(load.offsets()),
    );
    bencher.bench(|| nn(&[term(&dy, &w)], &offsets));
}

fn term<'a>(x: &'a Tensor, w: &'a [Tensor]) -> GroupTerm<'a> {
    GroupTerm {
        x,
        w: GroupFactors::Each(w.iter().map(Into::into).collect()),
        scale: 1.0,
    }
}
