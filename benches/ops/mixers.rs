//! Mixers in the place of attention: the convolution of LFM2 1.2B and the gated delta rule of Qwen3.5 with eight value
//! heads, one document of 1024 tokens beside attention of as many.

use candle_core::{DType, Device, Tensor};
use peft_tune_kernels::ops::convolution::{self, Convolution};
use peft_tune_kernels::ops::delta_rule::{self, Heads, Inputs};

use crate::TOKENS;

/// H of LFM2 1.2B.
const HIDDEN: usize = 2048;
const HEADS: Heads = Heads {
    keys: 4,
    values: 8,
    key_width: 128,
    value_width: 128,
};
const OFFSETS: [u32; 2] = [0, TOKENS as u32];
const DTYPES: [&str; 2] = ["f32", "bf16"];

fn random(shape: &[usize], dtype: &str) -> Tensor {
    let dtype = if dtype == "bf16" { DType::BF16 } else { DType::F32 };
    let values = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).expect("memory");
    values.to_dtype(dtype).expect("memory")
}

/// b, c and x, and the taps.
fn gated(dtype: &str) -> ([Tensor; 3], Tensor) {
    let all = [(); 3].map(|()| random(&[TOKENS, HIDDEN], dtype));
    (all, random(&[HIDDEN, 1, 3], dtype))
}

#[divan::bench(args = DTYPES)]
fn convolution_forward(bencher: divan::Bencher, dtype: &str) {
    let ([b, c, x], weight) = gated(dtype);
    let of = Convolution {
        weight: &weight,
        offsets: &OFFSETS,
    };
    let bytes = 4 * TOKENS * HIDDEN * x.dtype().size_in_bytes();
    bencher
        .counter(divan::counter::BytesCount::new(bytes))
        .bench_local(|| convolution::gated_forward([&b, &c, &x], of, None));
}

#[divan::bench(args = DTYPES)]
fn convolution_backward(bencher: divan::Bencher, dtype: &str) {
    let ([b, c, x], weight) = gated(dtype);
    let of = Convolution {
        weight: &weight,
        offsets: &OFFSETS,
    };
    let bytes = 7 * TOKENS * HIDDEN * x.dtype().size_in_bytes();
    bencher
        .counter(divan::counter::BytesCount::new(bytes))
        .bench_local(|| convolution::gated_backward([&b, &c, &x], of, &x));
}

/// mixed, a, b, rate, shift, d_o.
fn rule(dtype: &str) -> [Tensor; 6] {
    let narrow = [TOKENS, HEADS.values];
    [
        random(&[TOKENS, HEADS.input_width()], dtype),
        random(&narrow, dtype),
        random(&narrow, dtype),
        random(&narrow[1..], dtype),
        random(&narrow[1..], dtype),
        random(&[TOKENS, HEADS.output_width()], dtype),
    ]
}

fn inputs([mixed, a, b, rate, shift, _]: &[Tensor; 6]) -> Inputs<'_> {
    Inputs {
        mixed,
        a,
        b,
        rate,
        shift,
        heads: HEADS,
        offsets: &OFFSETS,
    }
}

/// Products with states, for each of their values and each token.
fn products(each: usize) -> divan::counter::ItemsCount {
    divan::counter::ItemsCount::new(each * TOKENS * HEADS.values * HEADS.state())
}

#[divan::bench(args = DTYPES)]
fn delta_rule_forward(bencher: divan::Bencher, dtype: &str) {
    let all = rule(dtype);
    bencher
        .counter(products(6))
        .bench_local(|| delta_rule::forward(&inputs(&all), None));
}

#[divan::bench(args = DTYPES)]
fn delta_rule_backward(bencher: divan::Bencher, dtype: &str) {
    let all = rule(dtype);
    bencher
        .counter(products(22))
        .bench_local(|| delta_rule::backward(&inputs(&all), &all[5]));
}
