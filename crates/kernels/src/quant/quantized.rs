//! Quantized weights, and what they can do.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Tensor, bail};
use half::{bf16, f16};
use peft_tune_core::plan::BLOCK;

use super::element::Element;
use crate::gpu;

/// Destination of signed codes and their factors.
#[derive(Debug)]
pub struct Int8Blocks<'a> {
    /// (rows, columns)
    pub codes: &'a mut [i8],
    /// (rows, columns / 64 rounded up)
    pub factors: &'a mut [f32],
}

/// Destination of a weight as signed bytes on a GPU: symmetric, one scale for each line of codes.
#[derive(Clone, Copy, Debug)]
pub struct ByteRows<'a> {
    /// (lines, codes of a line): at least the weight's rows, or its columns, and their lengths; a multiple of four. What is beyond them
    /// is zero.
    pub codes: &'a Tensor,
    /// (lines,) F32: what the codes are multiplied by. Not a number where a value is not finite.
    pub scales: &'a Tensor,
    /// Room for the largest values of columns, [`BANDS`](peft_tune_core::plan::products::device_int8::BANDS) for each line.
    pub bands: &'a Tensor,
    /// Whether the lines are the weight's columns.
    pub of_columns: bool,
}

impl Int8Blocks<'_> {
    /// The parts of each row.
    pub(super) fn rows(&mut self, columns: usize) -> impl Iterator<Item = (&mut [i8], &mut [f32])> {
        let codes = self.codes.chunks_exact_mut(columns);
        codes.zip(self.factors.chunks_exact_mut(columns.div_ceil(BLOCK)))
    }
}

/// Whether blocks of 64 from the start of each row lie within the weight's own blocks.
pub(super) fn blocks_lie_in_rows(block: usize, inputs: usize) -> bool {
    block == inputs || (block.is_multiple_of(BLOCK) && inputs.is_multiple_of(BLOCK))
}

/// A weight (out, in) that is widened to floats row by row.
pub trait Quantized: Sized {
    /// (out, in)
    fn shape(&self) -> (usize, usize);

    /// Device where the codes lie.
    fn device(&self) -> &Device;

    /// Bytes of the codes and constants.
    fn bytes(&self) -> usize;

    /// Writes some rows into a slice of rows * in elements, on the CPU.
    ///
    /// # Errors
    /// Rows outside the weight, a slice of another length, a weight on another device.
    fn fill_rows<T: Element>(&self, rows: Range<usize>, into: &mut [T]) -> Result<()>;

    /// Writes the columns `columns` of some rows into a slice of rows * columns elements, on the CPU and on this thread
    /// alone: what a product widens while it packs.
    ///
    /// # Errors
    /// Errors of [`fill_rows`](Self::fill_rows).
    fn fill_block<T: Element>(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()>;

    /// Writes the columns `columns` of some rows as signed 8-bit codes, row by row, and for each row the factor of each
    /// [`BLOCK`] of them: weight = code times factor, exactly for int8, to half a code for nf4. On the CPU and on this thread.
    /// `false`, and nothing written, where such blocks of a row would cut the weight's own.
    ///
    /// # Errors
    /// Errors of [`fill_rows`](Self::fill_rows); columns that do not begin at a block.
    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool>;

    /// Rows (rows, in) in `dtype` by plain tensor ops, on any device.
    ///
    /// # Errors
    /// Those of candle; rows outside the weight.
    fn rows_plain(&self, rows: Range<usize>, dtype: DType) -> Result<Tensor>;

    /// Writes some rows into a contiguous (rows, in) tensor by an own kernel, or into the first columns of a wider one.
    ///
    /// # Errors
    /// Those of the launch; a tensor that is narrower.
    fn launch_rows(&self, rows: Range<usize>, into: &Tensor) -> Result<()>;

    /// Writes some rows as signed bytes by own kernels.
    ///
    /// # Errors
    /// Those of the launch; too little room, a weight that is no codes.
    fn launch_byte_rows(&self, rows: Range<usize>, into: &ByteRows<'_>) -> Result<()>;

    /// The weight on another device.
    fn to_device(&self, device: &Device) -> Result<Self>;

    /// The whole weight (out, in) in `dtype`.
    ///
    /// # Errors
    /// Those of candle; a dtype that is not F32, BF16 or F16.
    fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        self.dequantize_rows(0..self.shape().0, dtype)
    }

    /// Rows (rows, in) in `dtype`.
    ///
    /// # Errors
    /// Errors of [`dequantize`](Self::dequantize); rows outside the weight.
    fn dequantize_rows(&self, rows: Range<usize>, dtype: DType) -> Result<Tensor> {
        if gpu::is_for(self.device(), dtype) {
            self.check_rows(&rows, rows.len() * self.shape().1)?;
            let into = gpu::empty((rows.len(), self.shape().1), dtype, self.device())?;
            self.launch_rows(rows, &into)?;
            return Ok(into);
        }
        if !self.device().is_cpu() {
            return self.rows_plain(rows, dtype);
        }
        let into = Tensor::zeros((rows.len(), self.shape().1), dtype, &Device::Cpu)?;
        self.dequantize_rows_into(rows, &into)?;
        Ok(into)
    }

    /// Writes some rows into `into` (rows, in), which is contiguous and whose dtype decides: nothing is allocated on the
    /// CPU. Own kernels on a GPU take a wider tensor as well, and leave its other columns as they are.
    ///
    /// # Errors
    /// Errors of [`dequantize_rows`](Self::dequantize_rows); another shape.
    fn dequantize_rows_into(&self, rows: Range<usize>, into: &Tensor) -> Result<()> {
        let expected = [rows.len(), self.shape().1];
        let is_wider = gpu::takes(into)
            && into
                .dims2()
                .is_ok_and(|(count, width)| count == rows.len() && width > expected[1]);
        if into.dims() != expected && !is_wider {
            bail!("expected a buffer of shape {expected:?}, got {:?}", into.dims());
        }
        if gpu::takes(into) {
            self.check_rows(&rows, rows.len() * expected[1])?;
            self.launch_rows(rows, into)
        } else if self.device().is_cpu() {
            into.inplace_op1(&FillRows { weight: self, rows })
        } else {
            into.slice_set(&self.rows_plain(rows, into.dtype())?, 0, 0)
        }
    }

    /// Fails unless the block lies in the weight and fills `elements`.
    ///
    /// # Errors
    /// It does not.
    fn check_block(&self, rows: &Range<usize>, columns: &Range<usize>, elements: usize) -> Result<()> {
        let (outputs, inputs) = self.shape();
        let inside =
            rows.start <= rows.end && rows.end <= outputs && columns.start <= columns.end && columns.end <= inputs;
        if !inside || rows.len() * columns.len() != elements {
            bail!(
                "rows {rows:?} and columns {columns:?} of a weight of shape {:?} do not fill {elements} elements",
                self.shape()
            );
        }
        Ok(())
    }

    /// Fails unless the block lies in the weight, begins at one of 64 columns and fills `into`.
    ///
    /// # Errors
    /// It does not.
    fn check_int8(&self, rows: &Range<usize>, columns: &Range<usize>, into: &Int8Blocks<'_>) -> Result<()> {
        self.check_block(rows, columns, into.codes.len())?;
        let factors = rows.len() * columns.len().div_ceil(BLOCK);
        if columns.is_empty() || !columns.start.is_multiple_of(BLOCK) || into.factors.len() != factors {
            bail!("columns {columns:?} do not begin at a block of {BLOCK}, or have another number of factors");
        }
        Ok(())
    }

    /// Fails unless `rows` lie in the weight and fill `elements`.
    ///
    /// # Errors
    /// They do not.
    fn check_rows(&self, rows: &Range<usize>, elements: usize) -> Result<()> {
        let (outputs, inputs) = self.shape();
        if rows.start > rows.end || rows.end > outputs || rows.len() * inputs != elements {
            bail!(
                "rows {rows:?} of a weight of shape {:?} do not fill {elements} elements",
                self.shape()
            );
        }
        Ok(())
    }
}

/// Fills a tensor with rows, in place.
struct FillRows<'a, W> {
    weight: &'a W,
    rows: Range<usize>,
}

impl<W: Quantized> InplaceOp1 for FillRows<'_, W> {
    fn name(&self) -> &'static str {
        "dequantize rows"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("expected a contiguous buffer, got {layout:?}");
        };
        let rows = self.rows.clone();
        match storage {
            CpuStorage::F32(values) => self.weight.fill_rows::<f32>(rows, &mut values[start..end]),
            CpuStorage::BF16(values) => self.weight.fill_rows::<bf16>(rows, &mut values[start..end]),
            CpuStorage::F16(values) => self.weight.fill_rows::<f16>(rows, &mut values[start..end]),
            _ => bail!("expected a buffer of F32, BF16 or F16"),
        }
    }
}
