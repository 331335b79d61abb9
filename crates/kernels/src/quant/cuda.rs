//! Quantized weights on an NVIDIA GPU: widened, or as rows of signed bytes.

use candle_core::{Device, Result, Tensor};
use peft_tune_core::plan::products::device_int8::BANDS;

use super::dynamic_map::DynamicMap;
use super::quantized::ByteRows;
use crate::gpu::{Argument, BYTES, Source, arguments, constant, element_name, source};

/// The kernels of this folder.
static SOURCE: Source = source!("quant", BYTES);

const THREADS: usize = 256;
/// Elements of a thread that widens.
const SHARE: usize = 8;
/// Neighbours that become bytes together.
const FOUR: usize = 4;
/// Columns and rows of the weight that a block turns around.
const TURNED: [usize; 2] = [32, 128];

/// Destination of the elements, rows of which may have a gap behind them.
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

/// Codes that kernels read, of one storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    Nf4,
    Int8,
}

impl Storage {
    /// Part of the kernels' names.
    fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Int8 => "int8",
        }
    }

    /// Whether a kernel of its own widens whole packs.
    fn has_packs(self) -> bool {
        self == Self::Nf4
    }
}

/// A weight as kernels take it.
pub(super) struct Weight<'a> {
    storage: Storage,
    arguments: Vec<Argument<'a>>,
    block: usize,
    /// Elements of a row.
    columns: usize,
}

impl<'a> Weight<'a> {
    /// A weight with the tensors of its storage, in the kernels' order, whose rows have `columns` elements and whose blocks `block`.
    pub(super) fn new(storage: Storage, arguments: &[Argument<'a>], columns: usize, block: usize) -> Self {
        // Most are powers of two, and spare a division.
        let power = if block.is_power_of_two() {
            block.ilog2()
        } else {
            u32::BITS
        };
        let mut arguments = arguments.to_vec();
        arguments.extend(arguments! { block as u32, power });
        Self {
            storage,
            arguments,
            block,
            columns,
        }
    }

    fn run(&self, kernel: &str, device: &Device, blocks: [usize; 3], arguments: &[Argument<'a>]) -> Result<()> {
        let all: Vec<Argument<'_>> = self.arguments.iter().chain(arguments).copied().collect();
        SOURCE.launch(kernel, blocks, [THREADS, 1, 1]).run(device, &all)
    }

    /// Writes the elements from `first` on into the rows of `into`, which is contiguous and has room for as many or more.
    pub(super) fn widen(&self, first: usize, into: &'a Tensor) -> Result<()> {
        let rows = Rows::new(self.columns, into)?;
        let whole = [first, rows.count, self.block, into.layout().start_offset()];
        let in_packs = self.storage.has_packs() && whole.iter().all(|value| value.is_multiple_of(SHARE));
        let (storage, packs) = (self.storage.name(), if in_packs { "_packs" } else { "" });
        let name = format!(
            "widen_{storage}{packs}_{}",
            element_name(into.dtype()).unwrap_or_default()
        );
        let blocks = [rows.count.div_ceil(SHARE * THREADS), 1, 1];
        let arguments = arguments! { into, rows.count as u64, first as u64, rows.columns as u32, rows.gap as u32 };
        self.run(&name, into.device(), blocks, &arguments)
    }

    /// Writes so many rows from the element `first` on as bytes.
    pub(super) fn byte_rows(&self, first: usize, rows: usize, into: &ByteRows<'a>) -> Result<()> {
        let (device, (lines, whole), columns) = (into.codes.device(), into.codes.dims2()?, self.columns);
        let kernel = |name: &str| format!("{name}_{}", self.storage.name());
        let fits = match into.of_columns {
            true => lines >= columns && whole >= rows,
            false => lines >= rows && whole >= columns,
        };
        if !fits || !whole.is_multiple_of(FOUR) || into.scales.elem_count() != lines {
            candle_core::bail!("({rows}, {columns}) values do not go into ({lines}, {whole}) bytes");
        }
        let size = arguments! { first as u64, rows as u32, columns as u32 };
        let with = |before: &[Argument<'a>], behind: &[Argument<'a>]| [before, &size, behind].concat();
        if !into.of_columns {
            let is_even = [first, columns, self.block].iter().all(|one| one.is_multiple_of(FOUR));
            let arguments = with(
                &arguments! { into.codes, into.scales },
                &arguments! { whole as u32, u32::from(is_even) },
            );
            return self.run(&kernel("byte_rows"), device, [lines, 1, 1], &arguments);
        }
        let blocks = [lines.div_ceil(THREADS), BANDS, 1];
        let arguments = with(&arguments! { into.bands }, &arguments! { lines as u32 });
        self.run(&kernel("largest_of_columns"), device, blocks, &arguments)?;
        let [of_columns, of_rows] = TURNED;
        let blocks = [lines.div_ceil(of_columns), whole.div_ceil(of_rows), 1];
        let arguments = with(
            &arguments! { into.bands, BANDS as u32, into.codes, into.scales },
            &arguments! { lines as u32, whole as u32 },
        );
        self.run(&kernel("byte_columns"), device, blocks, &arguments)
    }
}

/// Values of the signed dynamic map, which constants that are quantized are codes of.
pub(super) fn map(device: &Device) -> Result<Tensor> {
    constant("signed dynamic map", device, || DynamicMap::signed().values().to_vec())
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::gpu::{emulated, has_compiler};
    use crate::quant::{Int8, Nf4, Quantized};

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

    /// The values that codes and scales stand for, a line each, and the scales.
    fn as_bytes(
        weight: &impl Quantized,
        rows: std::ops::Range<usize>,
        of_columns: bool,
        [lines, whole]: [usize; 2],
    ) -> (Vec<Vec<f32>>, Vec<f32>) {
        let room = |elements: usize| Tensor::full(f32::NAN, elements, &Device::Cpu).unwrap();
        let codes = Tensor::full(77u8, (lines, whole), &Device::Cpu).unwrap();
        let (scales, bands) = (room(lines), room(BANDS * lines));
        let into = ByteRows {
            codes: &codes,
            scales: &scales,
            bands: &bands,
            of_columns,
        };
        emulated(|| weight.launch_byte_rows(rows, &into)).unwrap();
        let scales = scales.to_vec1::<f32>().unwrap();
        let codes = codes.to_vec2::<u8>().unwrap().into_iter().zip(&scales);
        let values = codes.map(|(line, scale)| {
            line.into_iter()
                .map(|code| f32::from(code.cast_signed()) * scale)
                .collect()
        });
        (values.collect(), scales)
    }

    #[test]
    fn rows_and_columns_become_bytes_with_a_scale_each() {
        if !has_compiler() {
            return;
        }
        // Blocks that lie in rows, that are cut by them, and rows that are not even; columns of several bands and blocks.
        for (outputs, inputs) in [(6, 128), (5, 96), (7, 33), (300, 40), (140, 64)] {
            let weight = Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu).unwrap();
            check_bytes(&Nf4::quantize(&weight, false).unwrap());
            check_bytes(&Nf4::quantize(&weight, true).unwrap());
            check_bytes(&Int8::quantize(&weight).unwrap());
        }
    }

    fn check_bytes(weight: &impl Quantized) {
        let (outputs, inputs) = weight.shape();
        let rows = 1..outputs;
        let dense = weight.dequantize_rows(rows.clone(), DType::F32).unwrap();
        for of_columns in [false, true] {
            let expected = if of_columns { dense.t().unwrap() } else { dense.clone() };
            let expected = expected.contiguous().unwrap().to_vec2::<f32>().unwrap();
            let [real, depth] = if of_columns {
                [inputs, rows.len()]
            } else {
                [rows.len(), inputs]
            };
            let [lines, whole] = [real.next_multiple_of(16), depth.next_multiple_of(16) + 16];
            let (values, scales) = as_bytes(weight, rows.clone(), of_columns, [lines, whole]);
            for (line, (values, scale)) in values.iter().zip(&scales).enumerate() {
                let zeros = vec![0.0; depth];
                let expected = expected.get(line).unwrap_or(&zeros);
                let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                assert!(
                    (scale * 127.0 - largest).abs() <= 1e-6 * largest,
                    "{scale} of {largest}"
                );
                for (got, value) in values.iter().zip(expected) {
                    assert!((got - value).abs() <= 0.501 * scale, "line {line}: {got} for {value}");
                }
                assert!(values[depth..].iter().all(|value| *value == 0.0));
            }
        }
    }

    #[test]
    fn codes_of_whole_rows_stay_as_they_are() {
        if !has_compiler() {
            return;
        }
        let weight = Int8::zeros_in_rows((8, 96), &Device::Cpu).unwrap();
        let dense = Tensor::randn(0f32, 1.0, (8, 96), &Device::Cpu).unwrap();
        weight.replace_rows(0, &dense).unwrap();
        let (values, _) = as_bytes(&weight, 0..8, false, [16, 96]);
        let expected = weight.dequantize(DType::F32).unwrap().to_vec2::<f32>().unwrap();
        for (got, expected) in values.iter().flatten().zip(expected.iter().flatten()) {
            assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{got} for {expected}");
        }
    }

    #[test]
    fn bytes_need_room_for_all_values() {
        let weight = Int8::quantize(&Tensor::ones((4, 64), DType::F32, &Device::Cpu).unwrap()).unwrap();
        let (codes, scales) = (
            Tensor::zeros((4, 48), DType::U8, &Device::Cpu).unwrap(),
            Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap(),
        );
        let into = ByteRows {
            codes: &codes,
            scales: &scales,
            bands: &scales,
            of_columns: false,
        };
        let error = emulated(|| weight.launch_byte_rows(0..4, &into)).unwrap_err();
        assert!(error.to_string().contains("do not go into (4, 48) bytes"), "{error}");
    }
}
