//! Widening on an NVIDIA GPU.

use candle_core::{Result, Tensor};

use super::dynamic_map::DynamicMap;
use super::int8::Int8;
use super::nf4::{Constants, Nf4};
use crate::gpu::{Argument, Source, arguments, constant, element_name, source};

/// The kernels of this folder.
static SOURCE: Source = source!("quant");

const THREADS: usize = 256;
/// Elements of a thread.
const SHARE: usize = 8;

/// Writes the elements from `first` on into `into`, which is contiguous.
pub(super) fn widen_nf4(weight: &Nf4, first: usize, into: &Tensor) -> Result<()> {
    let device = into.device();
    let map = constant("signed dynamic map", device, || DynamicMap::signed().values().to_vec())?;
    let (absmax, codes, nested, offset) = match &weight.constants {
        Constants::Plain(absmax) => (Some(absmax), None, None, 0.0),
        Constants::Double { codes, nested, offset } => (None, Some(codes), Some(nested), *offset),
    };
    let count = into.elem_count();
    let whole = [first, count, weight.block, into.layout().start_offset()];
    let kernel = match whole.iter().all(|value| value.is_multiple_of(SHARE)) {
        true => "widen_nf4_packs",
        false => "widen_nf4",
    };
    let arguments = arguments! {
        &weight.packed, absmax, codes, nested, &map, offset, into, count as u64, first as u64,
        weight.block as u32,
    };
    run(kernel, into, &arguments)
}

/// Writes the elements from `first` on into `into`, which is contiguous.
pub(super) fn widen_int8(weight: &Int8, first: usize, into: &Tensor) -> Result<()> {
    let arguments = arguments! {
        &weight.codes, &weight.constants, into, into.elem_count() as u64, first as u64,
        weight.block as u32,
    };
    run("widen_int8", into, &arguments)
}

fn run(kernel: &str, into: &Tensor, arguments: &[Argument<'_>]) -> Result<()> {
    let name = format!("{kernel}_{}", element_name(into.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(
        &name,
        [into.elem_count().div_ceil(SHARE * THREADS), 1, 1],
        [THREADS, 1, 1],
    );
    launch.run(into.device(), arguments)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::Quantized;
    use super::*;
    use crate::gpu::{emulated, has_compiler};

    fn same(weight: &impl Quantized, rows: std::ops::Range<usize>) {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let wide = |tensor: Tensor| {
                tensor
                    .flatten_all()
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap()
                    .to_vec1::<f32>()
                    .unwrap()
            };
            let expected = wide(weight.dequantize_rows(rows.clone(), dtype).unwrap());
            let got = wide(emulated(|| weight.dequantize_rows(rows.clone(), dtype)).unwrap());
            assert_eq!(got, expected, "{dtype:?}");
        }
    }

    #[test]
    fn kernels_widen_to_the_bits_of_the_cpu() {
        if !has_compiler() {
            return;
        }
        for (outputs, inputs) in [(5, 64), (7, 96), (3, 33), (300, 64)] {
            let weight = Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu).unwrap();
            for rows in [0..outputs, 1..outputs, 2..3] {
                same(&Nf4::quantize(&weight, false).unwrap(), rows.clone());
                same(&Nf4::quantize(&weight, true).unwrap(), rows.clone());
                same(&Int8::quantize(&weight).unwrap(), rows);
            }
        }
    }
}
