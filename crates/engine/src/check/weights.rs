//! Quantized weights, widened to the bits of the CPU.

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_kernels::compare::{Check, error, random};
use peft_tune_kernels::quant::{Int8, Nf4, Quantized};

pub(super) fn run(device: &Device, push: &mut dyn FnMut(Check)) {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        push(Check::new(
            format!("nf4 {dtype:?}"),
            0.0,
            check(device, dtype, |weight| Ok(Nf4::quantize(weight, false)?)),
        ));
        push(Check::new(
            format!("nf4_double {dtype:?}"),
            0.0,
            check(device, dtype, |weight| Ok(Nf4::quantize(weight, true)?)),
        ));
        push(Check::new(
            format!("int8 {dtype:?}"),
            0.0,
            check(device, dtype, |weight| Ok(Int8::quantize(weight)?)),
        ));
    }
}

fn check<Q: Quantized>(
    device: &Device,
    dtype: DType,
    quantize: impl Fn(&Tensor) -> std::result::Result<Q, QuantFailure>,
) -> Result<f64> {
    let mut largest = 0f64;
    for (outputs, inputs) in [(300, 64), (3, 33)] {
        let weight = random(&[outputs, inputs], 1)?.to_dtype(DType::F32)?;
        let codes = quantize(&weight).map_err(|failure| candle_core::Error::Msg(failure.0))?;
        let got = codes.to_device(device)?.dequantize_rows(1..outputs, dtype)?;
        let expected = codes.rows_plain(1..outputs, dtype)?;
        largest = largest.max(error(&got, &expected)?);
    }
    Ok(largest)
}

/// A quantizer's error as text.
struct QuantFailure(String);

impl<E: std::error::Error> From<E> for QuantFailure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
