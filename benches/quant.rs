//! Bytes per second of quantizing a 4096 x 4096 weight and of widening it: `cargo bench --bench quant`.
//!
//! Counted are the bytes on the wide side: F32 read for quantizing, the result written for widening.

use candle_core::{DType, Device, Tensor};
use divan::Bencher;
use divan::counter::BytesCount;
use peft_tune_kernels::quant::{Int8, Nf4, Quantized};

const SIDE: usize = 4096;

fn main() {
    divan::main();
}

fn weight() -> Tensor {
    Tensor::randn(0f32, 0.02, (SIDE, SIDE), &Device::Cpu).expect("memory for the weight")
}

fn widen(bencher: Bencher<'_, '_>, weight: &impl Quantized, dtype: DType) {
    let buffer = Tensor::zeros((SIDE, SIDE), dtype, &Device::Cpu).expect("memory for the buffer");
    bencher
        .counter(BytesCount::new(SIDE * SIDE * dtype.size_in_bytes()))
        .bench_local(|| {
            weight
                .dequantize_rows_into(0..SIDE, &buffer)
                .expect("rows fill the buffer")
        });
}

#[divan::bench(args = [DType::F32, DType::BF16])]
fn widen_nf4(bencher: Bencher<'_, '_>, dtype: DType) {
    widen(
        bencher,
        &Nf4::quantize(&weight(), false).expect("a finite weight"),
        dtype,
    );
}

#[divan::bench(args = [DType::F32, DType::BF16])]
fn widen_nf4_double(bencher: Bencher<'_, '_>, dtype: DType) {
    widen(
        bencher,
        &Nf4::quantize(&weight(), true).expect("a finite weight"),
        dtype,
    );
}

#[divan::bench(args = [DType::F32, DType::BF16])]
fn widen_int8(bencher: Bencher<'_, '_>, dtype: DType) {
    widen(bencher, &Int8::quantize(&weight()).expect("a finite weight"), dtype);
}

#[divan::bench]
fn quantize_nf4(bencher: Bencher<'_, '_>) {
    let weight = weight();
    bencher
        .counter(BytesCount::new(SIDE * SIDE * 4))
        .bench_local(|| Nf4::quantize(&weight, true).expect("a finite weight"));
}

#[divan::bench]
fn quantize_int8(bencher: Bencher<'_, '_>) {
    let weight = weight();
    bencher
        .counter(BytesCount::new(SIDE * SIDE * 4))
        .bench_local(|| Int8::quantize(&weight).expect("a finite weight"));
}
