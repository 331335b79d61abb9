//! Bytes per second of one optimizer step over ten million parameters: `cargo bench --bench optimizer`.
//!
//! Counted are the bytes that an update must move: the value read and written, the gradient read, each F32 state read
//! and written (a byte instead where states are 8-bit codes).

use candle_core::{Device, Tensor};
use divan::Bencher;
use divan::counter::BytesCount;
use peft_tune_core::predict::Pass;
use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings};
use peft_tune_engine::optimizer::{Optimizer, global_norm};
use peft_tune_engine::{ParameterKind, ParameterLayout, Parameters};

const ROWS: usize = 2500;
const COLUMNS: usize = 4000;
const ELEMENTS: usize = ROWS * COLUMNS;

fn main() {
    divan::main();
}

fn parameters() -> Parameters {
    let mut layout = ParameterLayout::default();
    layout.push("lora_A", &[ROWS, COLUMNS], ParameterKind::LoraA);
    let parameters = Parameters::zeros(layout, &Device::Cpu).expect("memory for the parameters");
    let gradients = Tensor::rand(-1f32, 1.0, ELEMENTS, &Device::Cpu).expect("memory for the gradients");
    parameters.gradients.slice_set(&gradients, 0, 0).expect("shapes agree");
    parameters
}

#[divan::bench(args = Pass::updates())]
fn step(bencher: Bencher<'_, '_>, kind: OptimizerKind) {
    let settings = OptimizerSettings {
        kind,
        ..Default::default()
    };
    let parameters = parameters();
    let mut optimizer =
        Optimizer::new(&settings, &parameters.layout, &Device::Cpu).expect("memory for the optimizer's state");
    bencher
        .counter(BytesCount::new(ELEMENTS * kind.row().update.bytes as usize))
        .bench_local(|| optimizer.step(&parameters, 1e-4).expect("an update on the CPU"));
}

#[divan::bench]
fn norm(bencher: Bencher<'_, '_>) {
    let parameters = parameters();
    bencher
        .counter(BytesCount::new(ELEMENTS * 4))
        .bench_local(|| global_norm(&parameters.gradients).expect("a norm on the CPU"));
}
