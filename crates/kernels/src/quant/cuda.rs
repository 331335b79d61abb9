//! Widening on an NVIDIA GPU.

use candle_core::{Result, Tensor};

use super::dynamic_map::DynamicMap;
use super::int8::Int8;
use super::nf4::{Constants, Nf4};
use super::quantized::Quantized;
use crate::gpu::{Argument, Source, arguments, constant, element_name, source};

/// The kernels of this folder.
static SOURCE: Source = source!("quant");

const THREADS: usize = 256;
/// Elements of a thread.
const SHARE: usize = 8;

/// Where the elements go, rows of which may have a gap behind them.
struct Rows {
    count: usize,
    columns: usize,
    gap: usize,
}

impl Rows {
    /// Rows of `columns` elements each in those of `into`, which is contiguous and may be wider.
    fn new(columns: usize, into: &Tensor) -> Result<Self> {
        let (rows, width) = into.dims2()?;
        let gap = width.saturating_sub(columns);
        if width < columns || (gap > 0 && !(columns.is_multiple_of(SHARE) && gap.is_multiple_of(SHARE))) {
            candle_core::bail!("rows of {columns} elements do not go into rows of {width}");
        }
        Ok(Self {
            count: rows * columns,
            columns,
            gap,
        })
    }
}

/// Writes the elements from `first` on into the rows of `into`, which is contiguous and has room for as many or more.
pub(super) fn widen_nf4(weight: &Nf4, first: usize, into: &Tensor) -> Result<()> {
    let (device, rows) = (into.device(), Rows::new(weight.shape().1, into)?);
    let map = constant("signed dynamic map", device, || DynamicMap::signed().values().to_vec())?;
    let (absmax, codes, nested, offset) = match &weight.constants {
        Constants::Plain(absmax) => (Some(absmax), None, None, 0.0),
        Constants::Double { codes, nested, offset } => (None, Some(codes), Some(nested), *offset),
    };
    let whole = [first, rows.count, weight.block, into.layout().start_offset()];
    let kernel = match whole.iter().all(|value| value.is_multiple_of(SHARE)) {
        true => "widen_nf4_packs",
        false => "widen_nf4",
    };
    let arguments = arguments! {
        &weight.packed, absmax, codes, nested, &map, offset, into, rows.count as u64, first as u64,
        weight.block as u32, rows.columns as u32, rows.gap as u32,
    };
    run(kernel, (into, &rows), &arguments)
}

/// As [`widen_nf4`].
pub(super) fn widen_int8(weight: &Int8, first: usize, into: &Tensor) -> Result<()> {
    let rows = Rows::new(weight.shape().1, into)?;
    let arguments = arguments! {
        &weight.codes, &weight.constants, into, rows.count as u64, first as u64,
        weight.block as u32, rows.columns as u32, rows.gap as u32,
    };
    run("widen_int8", (into, &rows), &arguments)
}

fn run(kernel: &str, (into, rows): (&Tensor, &Rows), arguments: &[Argument<'_>]) -> Result<()> {
    let name = format!("{kernel}_{}", element_name(into.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [rows.count.div_ceil(SHARE * THREADS), 1, 1], [THREADS, 1, 1]);
    launch.run(into.device(), arguments)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

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

    #[test]
    fn rows_may_have_room_behind_them() {
        if !has_compiler() {
            return;
        }
        let weight = Tensor::randn(0f32, 1.0, (6, 96), &Device::Cpu).unwrap();
        let wide = Tensor::ones((4, 128), DType::F32, &Device::Cpu).unwrap();
        let check = |fill: &dyn Fn(&Tensor) -> Result<()>, expected: Tensor| {
            let into = wide.copy().unwrap();
            emulated(|| fill(&into)).unwrap();
            let values = into.to_vec2::<f32>().unwrap();
            for (row, expected) in values.iter().zip(expected.to_vec2::<f32>().unwrap()) {
                assert_eq!(row[..96], expected);
                assert_eq!(row[96..], [1.0; 32]);
            }
        };
        let rows = 1..5;
        let nf4 = Nf4::quantize(&weight, true).unwrap();
        let expected = nf4.dequantize_rows(rows.clone(), DType::F32).unwrap();
        check(&|into| nf4.dequantize_rows_into(rows.clone(), into), expected);
        let int8 = Int8::quantize(&weight).unwrap();
        let expected = int8.dequantize_rows(rows.clone(), DType::F32).unwrap();
        check(&|into| int8.dequantize_rows_into(rows.clone(), into), expected);
        let narrow = wide.narrow(1, 0, 64).unwrap().contiguous().unwrap();
        assert!(emulated(|| nf4.dequantize_rows_into(rows.clone(), &narrow)).is_err());
    }
}
