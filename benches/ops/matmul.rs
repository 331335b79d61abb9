//! The products of a linear layer and of its adapter of rank 16.

use crate::{Case, TOKENS, cases, operations};
use candle_core::{DType, Device, Tensor};
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::Term;

const RANK: usize = 16;

#[divan::bench(args = cases())]
fn forward(bencher: divan::Bencher, case: &Case) {
    let (inner, outer) = (case.model.hidden, case.model.intermediate);
    let (x, w) = (case.random(&[TOKENS, inner]), case.random(&[outer, inner]));
    case.time(bencher, operations(2 * TOKENS * inner * outer), || matmul::nt(&x, &w));
}

#[divan::bench(args = cases())]
fn forward_with_adapter(bencher: divan::Bencher, case: &Case) {
    let (inner, outer) = (case.model.hidden, case.model.intermediate);
    let (x, w) = (case.random(&[TOKENS, inner]), case.random(&[outer, inner]));
    let (u, b) = (case.random(&[TOKENS, RANK]), case.random(&[outer, RANK]));
    case.time(bencher, operations(2 * TOKENS * (inner + RANK) * outer), || {
        matmul::nt_sum(&[Term::new(&x, &w, 1.0), Term::new(&u, &b, 2.0)])
    });
}

#[divan::bench(args = cases())]
fn backward(bencher: divan::Bencher, case: &Case) {
    let (inner, outer) = (case.model.hidden, case.model.intermediate);
    let (dy, w) = (case.random(&[TOKENS, outer]), case.random(&[outer, inner]));
    case.time(bencher, operations(2 * TOKENS * inner * outer), || matmul::nn(&dy, &w));
}

#[divan::bench(args = cases())]
fn adapter_down(bencher: divan::Bencher, case: &Case) {
    let inner = case.model.hidden;
    let (x, a) = (case.random(&[TOKENS, inner]), case.random(&[RANK, inner]));
    case.time(bencher, operations(2 * TOKENS * inner * RANK), || matmul::nt(&x, &a));
}

#[divan::bench(args = cases())]
fn adapter_gradient_a(bencher: divan::Bencher, case: &Case) {
    gradient(bencher, case, RANK, case.model.hidden);
}

#[divan::bench(args = cases())]
fn adapter_gradient_b(bencher: divan::Bencher, case: &Case) {
    gradient(bencher, case, case.model.intermediate, RANK);
}

#[divan::bench(args = cases())]
fn weight_gradient(bencher: divan::Bencher, case: &Case) {
    gradient(bencher, case, case.model.intermediate, case.model.hidden);
}

fn gradient(bencher: divan::Bencher, case: &Case, rows: usize, columns: usize) {
    let (a, b) = (case.random(&[TOKENS, rows]), case.random(&[TOKENS, columns]));
    let into = Tensor::zeros((rows, columns), DType::F32, &Device::Cpu).expect("the gradient is small");
    case.time(bencher, operations(2 * TOKENS * rows * columns), || {
        matmul::tn_add(&a, &b, 1.0, &into)
    });
}
