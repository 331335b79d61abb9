//! The ops that read and write each value once.

use crate::{Case, TOKENS, cases};
use candle_core::{Device, Tensor};
use peft_tune_kernels::ops::{dropout, glu, residual, rms_norm, rope};

#[divan::bench(args = cases())]
fn rms_norm_forward(bencher: divan::Bencher, case: &Case) {
    let (x, weight) = (
        case.random(&[TOKENS, case.model.hidden]),
        case.random(&[case.model.hidden]),
    );
    case.time(bencher, case.bytes(2 * x.elem_count()), || {
        rms_norm::forward(&x, &weight, 1e-5, 0.0)
    });
}

#[divan::bench(args = cases())]
fn rms_norm_backward(bencher: divan::Bencher, case: &Case) {
    let (x, weight) = (
        case.random(&[TOKENS, case.model.hidden]),
        case.random(&[case.model.hidden]),
    );
    let dy = case.random(&[TOKENS, case.model.hidden]);
    let (_, rstd) = rms_norm::forward(&x, &weight, 1e-5, 0.0).expect("shapes agree");
    case.time(bencher, case.bytes(3 * x.elem_count()), || {
        rms_norm::backward(&x, &weight, &rstd, &dy, 0.0)
    });
}

#[divan::bench(args = cases())]
fn glu_forward(bencher: divan::Bencher, case: &Case) {
    let input = || case.random(&[TOKENS, case.model.intermediate]);
    let (gate, up) = (input(), input());
    case.time(bencher, case.bytes(3 * gate.elem_count()), || {
        glu::forward(&gate, &up, glu::Activation::Silu)
    });
}

#[divan::bench(args = cases())]
fn glu_backward(bencher: divan::Bencher, case: &Case) {
    let input = || case.random(&[TOKENS, case.model.intermediate]);
    let (gate, up, dy) = (input(), input(), input());
    case.time(bencher, case.bytes(5 * gate.elem_count()), || {
        glu::backward(gate.clone(), &up, dy.clone(), glu::Activation::Silu)
    });
}

#[divan::bench(args = cases())]
fn rope_queries(bencher: divan::Bencher, case: &Case) {
    let head_dim = case.model.head_dim;
    let inverse: Vec<f32> = (0..head_dim / 2)
        .map(|i| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32))
        .collect();
    let table = rope::RopeTable::new(&inverse, 1.0, TOKENS, &Device::Cpu).expect("the table is small");
    let positions = Tensor::arange(0, TOKENS as u32, &Device::Cpu).expect("the stream is small");
    let q = case.random(&[TOKENS, case.model.query_heads, head_dim]);
    case.time(bencher, case.bytes(2 * q.elem_count()), || {
        rope::forward(&q, &table, &positions)
    });
}

#[divan::bench(args = cases())]
fn dropout_hidden(bencher: divan::Bencher, case: &Case) {
    let x = case.random(&[TOKENS, case.model.hidden]);
    let key = dropout::MaskKey::new(7, 0);
    case.time(bencher, case.bytes(2 * x.elem_count()), || {
        dropout::apply(&x, &key, 0, 0.1)
    });
}

#[divan::bench(args = cases())]
fn residual_add(bencher: divan::Bencher, case: &Case) {
    let (x, y) = (
        case.random(&[TOKENS, case.model.hidden]),
        case.random(&[TOKENS, case.model.hidden]),
    );
    case.time(bencher, case.bytes(3 * x.elem_count()), || residual::add(&x, &y));
}
